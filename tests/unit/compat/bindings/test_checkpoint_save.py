"""The three adapters around a writer that is only a stub: marked, kept, staged, or left alone."""

import io
from types import SimpleNamespace

import pytest
import torch

from miles_periodic.compat.bindings import checkpoint_save, staging_memory
from miles_periodic.compat.bindings.checkpoint_save import (
    in_waves,
    keep_host_tensors,
    synchronous,
)
from miles_periodic.hooks import Feature, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.chunked_checkpoint_staging.feature import ChunkedCheckpointStaging

FLAT = torch.arange(100, dtype=torch.float32)
TENSORS = {"view": FLAT[10:20], "own": torch.ones(5), "strided": FLAT[:80].view(8, 10).t()}


def item(name):
    return SimpleNamespace(index=SimpleNamespace(fqn=name, offset=None))


class Planner:
    """Resolves what it is asked for by name."""

    helper = "the planner's own"

    def resolve_data(self, item):
        return TENSORS[item.index.fqn]


class Writer:
    """Of one bucket, as Megatron's: it clones views, and writes into a dictionary."""

    use_msc = False

    def __init__(self):
        self.cloned, self.files, self.results = [], {}, SimpleNamespace(put=self.take)

    def take(self, outcome):
        self.outcome = outcome

    def prepare_write_data(self, plan, planner):
        assert planner.helper == "the planner's own"
        tensors = []
        for each in plan:
            tensor = planner.resolve_data(each)
            if tensor.device.type == "cpu" and staging_memory.is_view(tensor):
                self.cloned.append(each.index.fqn)
                tensor = tensor.clone()
            tensors.append((each, tensor))
        self.write_buckets = [("/out/__0_0.distcp", "__0_0.distcp", ([], tensors))]

    def get_save_function_and_args(self):
        return "native", "preload", [0, self.write_buckets, self.results]

    def write_preloaded_data(self, transforms, number, bucket, results, pending, use_fsync):
        _, name, (_, tensors) = bucket
        self.files[name] = {}
        for each, tensor in tensors:
            stream = io.BytesIO()
            torch.save(tensor, stream)
            self.files[name][each.index.fqn] = (tensor.clone(), stream.tell())
        results.put((number, [f"result of {name}"]))


@pytest.fixture
def use(monkeypatch):
    def use(*features):
        made = build_manager(features)
        monkeypatch.setattr(checkpoint_save, "manager", lambda: made)

    return use


def prepared(writer):
    plan = [item(name) for name in TENSORS]
    keep_host_tensors(writer.prepare_write_data, writer, (plan, Planner()), {})
    return in_waves(writer.get_save_function_and_args, writer, (), {})


def saved(writer):
    def save(instance):
        function, preload, arguments = prepared(writer)
        assert preload is None
        function(*arguments)

    synchronous(save, None, (writer,), {})


def test_an_asynchronous_save_is_prepared_as_megatron_does(use):
    use(ChunkedCheckpointStaging())
    writer = Writer()
    assert prepared(writer)[:2] == ("native", "preload")
    assert writer.cloned == ["view", "strided"]


def test_a_synchronous_save_clones_nothing_and_writes_what_each_tensor_holds(use):
    use(ChunkedCheckpointStaging())
    writer = Writer()
    saved(writer)
    assert writer.cloned == []
    assert writer.outcome == {0: ["result of __0_0.distcp"]}
    written = writer.files["__0_0.distcp"]
    for name, tensor in TENSORS.items():
        assert torch.equal(written[name][0], tensor)
    assert written["view"][1] <= written["own"][1] + 64


def test_the_mark_of_a_synchronous_save_ends_with_it_also_where_it_fails(use):
    use(ChunkedCheckpointStaging())

    def fail():
        raise OSError

    with pytest.raises(OSError):
        synchronous(fail, None, (), {})
    assert prepared(Writer())[0] == "native"


class Silent(Feature):
    """Takes the decision, and leaves it to Megatron."""

    slug = "silent"

    @hookimpl
    def checkpoint_waves(self, entries, num_writers):
        return None


def test_hook_checkpoint_waves_without_an_answer_writes_megatrons_files(use):
    use(Silent())
    writer = Writer()
    saved(writer)
    assert list(writer.files) == ["__0_0.distcp"] and len(writer.files["__0_0.distcp"]) == 3


class Broken(Feature):
    """Raises where waves are asked for."""

    slug = "broken"

    def __init__(self, error):
        super().__init__()
        self.error = error

    @hookimpl
    def checkpoint_waves(self, entries, num_writers):
        raise self.error


def test_an_error_is_handed_in_as_this_ranks_result_so_that_all_ranks_raise(use):
    use(Broken(ValueError("no waves")))
    writer = Writer()
    saved(writer)
    assert isinstance(writer.outcome, RuntimeError)
    assert "rank 0 of the checkpoint: ValueError('no waves')" in str(writer.outcome)


def test_an_interrupt_is_nobodys_result(use):
    use(Broken(KeyboardInterrupt()))
    writer = Writer()
    with pytest.raises(KeyboardInterrupt):
        saved(writer)
    assert not hasattr(writer, "outcome")


def test_a_rank_with_nothing_to_write_is_left_alone(use):
    use(ChunkedCheckpointStaging())
    nothing = (None, None, [])

    def save(instance):
        return in_waves(lambda: nothing, Writer(), (), {})

    assert synchronous(save, None, (None,), {}) == nothing
