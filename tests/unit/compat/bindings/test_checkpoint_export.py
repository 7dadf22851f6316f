"""The adapter around an export that is only a stub: converted, left alone, or ended everywhere."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from miles_periodic.compat.bindings import checkpoint_export
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager

HF_EXPORT_COMPLETE_MARKER = ".complete"


class Exporter(Feature):
    """Answers what it is told to."""

    slug = "exporter"

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    @hookimpl
    def export_checkpoint(self, checkpoint, target, arguments):
        self.asked.append((checkpoint, target, arguments["save"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def run(monkeypatch, stub, tmp_path):
    """`run(answer, rank=…, told=…)`: whether Miles's own export ran, and what was asked."""
    calls = []

    def save_hf_model(args, rollout_id, model, *, path=None):
        calls.append(path)

    def run(answer, rank=0, told=None, async_save=False, **named):
        exporter = Exporter(answer)
        monkeypatch.setattr(checkpoint_export, "manager", lambda: build_manager([exporter]))
        stub("miles.utils.distributed_utils", get_gloo_group=lambda: "gloo")
        monkeypatch.setattr(dist, "get_rank", lambda: rank)

        def broadcast(objects, src, group):
            assert (src, group) == (0, "gloo")
            if rank:
                objects[0] = told

        monkeypatch.setattr(dist, "broadcast_object_list", broadcast)
        (tmp_path / "hf7").mkdir(exist_ok=True)
        arguments = SimpleNamespace(
            save="/out", save_hf=f"{tmp_path}/hf{{rollout_id}}", async_save=async_save
        )
        checkpoint_export.export(save_hf_model, None, (arguments, 7, ["model"]), named)
        return calls, exporter.asked

    return run


def test_hook_export_checkpoint_is_asked_for_the_checkpoint_that_was_just_saved(run, tmp_path):
    calls, asked = run(True)
    assert asked == [("/out/iter_0000007", f"{tmp_path}/hf7", "/out")]
    assert calls == []


def test_where_no_feature_answers_miles_exports_in_every_rank(run):
    assert run(None)[0] == [None]
    assert run(None, rank=1, told=None)[0] == [None, None]


def test_other_ranks_do_what_the_first_one_says(run):
    calls, asked = run(None, rank=1, told=True)
    assert (calls, asked) == ([], [])


@pytest.mark.parametrize(("rank", "told"), [(0, None), (1, "no space")])
def test_what_fails_in_the_first_rank_ends_every_rank(rank, told, run):
    with pytest.raises(PeriodicError, match="no space"):
        run(OSError("no space"), rank, told)


def test_an_export_of_weights_that_no_checkpoint_holds_stays_that_of_miles(run):
    assert run(True, path="/snapshot") == (["/snapshot"], [])


def test_a_whole_export_is_marked_as_a_newer_miles_does(run, tmp_path):
    run(True)
    assert (tmp_path / "hf7" / ".complete").exists()


def test_an_export_that_was_given_up_is_not_marked(run, tmp_path):
    calls, _ = run(False)
    assert calls == [] and not (tmp_path / "hf7" / ".complete").exists()


def test_an_asynchronous_save_is_waited_for(run, stub):
    seen = []
    stub(
        "megatron.training.async_utils",
        maybe_finalize_async_save=lambda blocking: seen.append(blocking),
    )
    run(True, async_save=True)
    assert seen == [True]
