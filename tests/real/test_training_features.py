"""Offloaded optimizer state, staged saves and losses without logits in whole runs of Miles.

The rehearsal's second step is taken again from its first checkpoint, by runs without servers that
train on its recorded rollouts: `taken_up` puts offload and staging in where they were not,
`left_out` goes on without them.
"""

import re
import shutil
from pathlib import Path

import pytest
import torch
from cpu_runs import EXACT, run_on_cpu
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from miles_periodic.cli.rehearsal.measurements import measure_training, read_records
from miles_periodic.compat.cpu.flags import CpuRun, checkpoints_folder

pytestmark = pytest.mark.real

OFFLOAD, STAGING, LOSS = (
    "chunked-optimizer-offload",
    "chunked-checkpoint-staging",
    "fused-linear-cross-entropy",
)
#: What each trainer of a run that trains and saves consults, of each feature.
CONSULTED = {
    OFFLOAD: {"training/offloaded-optimizer", "training/write-weights", "training/state-of-weight"},
    STAGING: {"checkpoint/save-of-base", "checkpoint/waves", "checkpoint/host-tensors"},
    LOSS: {"loss/output", "loss/log-probs"},
}
#: Native log-probabilities come from logits that Megatron rounds to BF16, eight bits long. It moves
#: this loss by 7e-5, the mean difference to the server's by 3e-5, the gradient's norm by 0.14 %.
TOLERANCES = {
    "loss": {"abs": 5e-4},
    "log_prob_difference": {"abs": 2e-4},
    "grad_norm": {"rel": 0.01},
}
#: Each tensor is copied before it is written, as from a GPU.
NOTHING_ON_THE_HOST = """
from miles_periodic.compat.bindings import staging_memory
staging_memory.lies_on_host = lambda tensor: False
"""
WRITTEN = re.compile(r"checkpoint written in (\d+) waves: (\d+) bytes copied .* most (\d+) at once")


@pytest.fixture(scope="module")
def taken_up(rehearsal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("taken_up")
    return go_on(rehearsal, "off", folder, OFFLOAD, STAGING, site=NOTHING_ON_THE_HOST)


@pytest.fixture(scope="module")
def left_out(rehearsal, tmp_path_factory):
    """What decides which rows are trained on together, and by which arithmetic, stays in."""
    others = ("delta-router-replay", "cost-aware-packing", LOSS)
    return go_on(rehearsal, "on", tmp_path_factory.mktemp("left_out"), *others)


@pytest.mark.parametrize("feature", CONSULTED)
def test_every_trainer_of_a_rehearsal_consults_each_feature(rehearsal, feature):
    for consulted in by_trainer(rehearsal.result["runs"]["on"]["processes"]):
        assert CONSULTED[feature] <= consulted.keys()


def test_losses_of_a_rehearsal_are_those_without_the_features_but_for_rounding(rehearsal):
    off, on = (uninterrupted(rehearsal, name)[0] for name in ("off", "on"))
    for name, tolerance in TOLERANCES.items():
        assert on[name] == pytest.approx(off[name], **tolerance)
        assert on[name] != off[name]


def test_every_trainer_that_takes_offload_up_loads_what_megatron_saved(taken_up):
    for consulted in by_trainer(taken_up.processes):
        assert consulted["training/load-state-of-weight"] > 20
        assert CONSULTED[OFFLOAD] | CONSULTED[STAGING] <= consulted.keys()


def test_no_trainer_without_offload_and_staging_consults_them(left_out):
    for consulted in by_trainer(left_out.processes):
        assert not (CONSULTED[OFFLOAD] | CONSULTED[STAGING]) & consulted.keys()


def test_every_trainer_saves_in_waves_and_holds_no_more_than_its_bound(taken_up):
    bound = EXACT[STAGING]["staging_bytes"]
    written = [map(int, found) for found in WRITTEN.findall(taken_up.log.read_text())]
    assert len(written) == 2
    for num_waves, copied_bytes, peak_bytes in written:
        assert num_waves >= 3 and 0 < peak_bytes <= bound < copied_bytes / 2


@pytest.mark.parametrize(("resumed", "whole"), [("taken_up", "off"), ("left_out", "on")])
def test_a_resumed_run_goes_on_bit_for_bit_from_the_step_that_was_saved(
    resumed, whole, rehearsal, request, tmp_path
):
    outcome = request.getfixturevalue(resumed)
    (step,) = measure_training(read_records(outcome.records))
    expected = uninterrupted(rehearsal, whole)[1]
    assert step == {name: expected[name] for name in step}
    assert {"step", "loss", "grad_norm", "log_prob_difference"} <= set(step)
    found, expected = (
        tensors(checkpoints_folder(folder) / "iter_0000001", tmp_path)
        for folder in (outcome.folder, rehearsal.folder / "work" / whole)
    )
    assert set(found) == set(expected) and len(found) > 40
    assert [key for key in found if not torch.equal(found[key], expected[key])] == []


def go_on(rehearsal, name, folder, *slugs, site=""):
    """The second step of the rehearsal's run of that name once more, from its first checkpoint."""
    whole = rehearsal.folder / "work" / name
    first = "iter_0000000"
    shutil.copytree(checkpoints_folder(whole) / first, folder / "first" / first)
    (folder / "first" / "latest_checkpointed_iteration.txt").write_text("0", encoding="utf-8")
    shape = CpuRun(num_rollouts=2, save_interval=1, load=folder / "first", recorded=whole)
    outcome = run_on_cpu(folder / "work", slugs, shape=shape, site=site, settings=EXACT)
    assert (outcome.status, outcome.problems) == (0, []), outcome.log.read_text()[-3000:]
    return outcome


def by_trainer(processes) -> list[dict[str, int]]:
    """How often each rank consulted each binding; Megatron's writers are no ranks."""
    ranks = [p["consulted"] for p in processes if p["role"] == "trainer" and p["consulted"]]
    assert len(ranks) == 2
    return ranks


def uninterrupted(rehearsal, name) -> list[dict[str, float]]:
    return rehearsal.result["runs"][name]["training"]["per_step"]


def tensors(checkpoint: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a sharded checkpoint by its path: weights, masters and moments."""
    whole = scratch / "whole.pt"
    dcp_to_torch_save(checkpoint, whole)
    return dict(leaves("", torch.load(whole, weights_only=False)))


def leaves(path, node):
    if isinstance(node, torch.Tensor):
        yield path, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(f"{path}/{key}", value)
