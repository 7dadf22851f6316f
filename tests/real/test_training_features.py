"""Offloaded optimizer state, staged saves and losses without logits in whole runs of Miles."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import EXACT, run_on_cpu
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from miles_periodic.cli.rehearsal.measurements import measure_training, read_records
from miles_periodic.compat.cpu.flags import CpuRun, checkpoints_folder, rollouts_file

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
#: Miles's log-probabilities come from logits that Megatron rounds to BF16, eight bits long.
LOSS_TOLERANCE, NORM_TOLERANCE = 5e-3, 0.05


@pytest.fixture(scope="module")
def work(rehearsal) -> Path:
    return rehearsal.folder / "work"


@pytest.fixture(scope="module")
def go_on(work, tmp_path_factory):
    """`go_on(*slugs)`: the second step of the rehearsal once more, from its first checkpoint."""

    def resume(*slugs):
        folder = tmp_path_factory.mktemp("resumed")
        first = checkpoints_folder(work / "on")
        shutil.copytree(first / "iter_0000000", folder / "first" / "iter_0000000")
        (folder / "first" / "latest_checkpointed_iteration.txt").write_text("0", encoding="utf-8")
        widen_routes(rollouts_file(work / "on"), rollouts_file(folder))
        shape = CpuRun(num_rollouts=2, save_interval=1, load=folder / "first", recorded=folder)
        outcome = run_on_cpu(folder / "work", ("cost-aware-packing", *slugs), shape, EXACT)
        assert (outcome.status, outcome.problems) == (0, []), outcome.log.read_text()[-3000:]
        return outcome

    return resume


@pytest.fixture(scope="module")
def resumed(go_on):
    return go_on(OFFLOAD, STAGING, LOSS)


@pytest.fixture(scope="module")
def native(go_on):
    """With optimizer state and saves as Megatron has them."""
    return go_on(LOSS)


@pytest.mark.parametrize("feature", CONSULTED)
def test_every_trainer_of_a_rehearsal_consults_each_feature(rehearsal, feature):
    processes = rehearsal.result["runs"]["on"]["processes"]
    trainers = [process for process in processes if process["role"] == "trainer"]
    assert len(trainers) == 2
    for trainer in trainers:
        assert CONSULTED[feature] <= set(trainer["consulted"])


def test_losses_of_a_rehearsal_are_those_without_the_features_but_for_rounding(rehearsal):
    off, on = (rehearsal.result["runs"][name]["training"]["per_step"][0] for name in ("off", "on"))
    assert on["loss"] == pytest.approx(off["loss"], abs=LOSS_TOLERANCE)
    assert on["grad_norm"] == pytest.approx(off["grad_norm"], rel=NORM_TOLERANCE)


def test_a_resumed_run_goes_on_from_the_saved_step(resumed, rehearsal):
    (step,) = trained(resumed)
    whole = rehearsal.result["runs"]["on"]["training"]["per_step"][1]
    assert step == {name: whole[name] for name in step}
    assert {"step", "loss", "grad_norm", "log_prob_difference"} <= set(step)


def test_every_trainer_of_a_resumed_run_loads_into_host_memory(resumed):
    trainers = [row for row in resumed.processes if row["role"] == "trainer"]
    assert len(trainers) == 2
    for trainer in trainers:
        assert trainer["consulted"]["training/load-state-of-weight"] > 20


def test_without_offload_and_staging_the_same_step_has_the_same_bits(native, resumed):
    assert [
        row["role"] for row in native.processes if set(row["consulted"]) & CONSULTED[OFFLOAD]
    ] == []
    assert trained(native) == trained(resumed)


@pytest.mark.parametrize("run", ["resumed", "native"])
def test_what_is_saved_then_has_the_bits_of_the_run_that_was_not_interrupted(
    run, work, request, tmp_path
):
    folder = request.getfixturevalue(run).folder
    found, expected = (
        tensors(checkpoints_folder(each) / "iter_0000001", tmp_path)
        for each in (folder, work / "on")
    )
    assert set(found) == set(expected) and len(found) > 20
    assert [key for key in found if not torch.equal(found[key], expected[key])] == []


def widen_routes(recorded: Path, copy: Path) -> None:
    """The second rollout, its routes as Miles has them where nothing keeps them narrow."""
    saved = torch.load(str(recorded).format(rollout_id=1), weights_only=False)
    for sample in saved["samples"]:
        key = "rollout_routed_experts"
        sample[key] = np.asarray(sample[key]).astype(np.int32)
    copy.parent.mkdir()
    torch.save(saved, str(copy).format(rollout_id=1))


def trained(outcome) -> list[dict]:
    return measure_training(read_records(outcome.records))


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
