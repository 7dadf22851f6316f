"""`miles bench offload` at a tiny size on the CPU: what it tells, and when it fails."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from miles_periodic.cli.bench import app, offload, offload_contest
from miles_periodic.cli.bench.offload_contest import Outcome, Rank, Task
from miles_periodic.compat.bench.optimizer_step import MegatronOutcome

SMALL = ["offload", "--parameters", "30000", "--workspace-mib", "1", "--steps", "1"]


def measure(*options):
    done = CliRunner().invoke(app, [*SMALL, "--json", *options])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("kernel", ["foreach", "fused", "loop"])
def test_both_optimizers_are_stepped_and_equal_within_the_workspace(kernel):
    status, result = measure("--kernel", kernel)
    assert (status, result["goals"], result["bit_equal"]) == (0, "met", True)
    assert [row["optimizer"] for row in result["rows"]] == ["all on device", "ChunkedAdam"]
    assert result["rows"][1]["state_on_device_mib"] <= 1


def test_bf16_moments_are_compared_with_nothing_and_have_a_lower_floor():
    status, result = measure("--moment-dtype", "bfloat16")
    assert (status, result["bit_equal"]) == (0, None)
    seconds = result["floor_ms"] / 1e3
    assert seconds * result["link_gb_s_each_way"] * 1e9 == pytest.approx(8 * 30000)


def test_the_table_has_a_row_for_each_optimizer():
    done = CliRunner().invoke(app, SMALL)
    assert done.exit_code == 0 and "ChunkedAdam" in done.stdout and "goals: met" in done.stdout


def test_a_workspace_without_room_for_its_chunks_is_refused_with_the_option_to_change():
    done = CliRunner().invoke(app, [*SMALL, "--chunk-mib", "1"])
    assert "is too small" in str(done.exception) and "--workspace-mib" in str(done.exception)


TASK = Task(1000, "foreach", 1 << 20, None, "float32", 1)
NATIVE = Outcome("all on device", 0.1, 1.0, 1 << 21, 0, (1, 2, 3))
CHUNKED = Outcome("ChunkedAdam", 1.05, 1.0, 1 << 19, 0, (1, 2, 3))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "met"),
        ({"seconds": 1.2}, "over 1.10 floors"),
        ({"state_bytes": 1 << 21}, "over the workspace"),
        ({"digest": (1, 2, 4)}, "differ from torch's"),
        ({"seconds": float("inf"), "digest": ()}, "does not fit"),
    ],
)
def test_every_goal_that_is_missed_is_told(changed, told):
    assert told in offload.verdict(NATIVE, replace(CHUNKED, **changed), TASK, 1.0, gpu=True)


def test_without_a_gpu_time_is_no_goal():
    assert offload.verdict(NATIVE, replace(CHUNKED, seconds=9.0), TASK, 1.0, gpu=False) == "met"


@pytest.mark.parametrize("num_parameters", [1000, 999_999, 1 << 31])
def test_the_shapes_have_as_many_elements_as_asked_for(num_parameters):
    found = offload_contest.shapes(num_parameters)
    assert sum(torch.Size(shape).numel() for shape in found) == num_parameters


def test_the_digest_sees_one_bit_and_an_exchange_of_two_elements():
    (param,) = params = [torch.arange(10.0).requires_grad_()]
    optimizer = torch.optim.AdamW(params)
    param.grad = torch.ones(10)
    optimizer.step()
    before = offload_contest._digest(optimizer, params, torch.device("cpu"))
    optimizer.state[param]["exp_avg"][3].mul_(1 + 2**-23)
    bit = offload_contest._digest(optimizer, params, torch.device("cpu"))
    param.data[[1, 2]] = param.data[[2, 1]]
    swapped = offload_contest._digest(optimizer, params, torch.device("cpu"))
    assert len({before, bit, swapped}) == 3 and bit[0] == before[0]


def test_a_contender_that_does_not_fit_has_an_endless_step(monkeypatch):
    def full(params, task):
        raise torch.OutOfMemoryError("full")

    rank = Rank(0, 1, torch.device("cpu"))
    monkeypatch.setattr(offload_contest, "CONTENDERS", {"all on device": full})
    _, (outcome,) = offload_contest.contest(TASK, rank, lambda _: None)
    assert outcome.seconds == float("inf") and not outcome.digest


SECONDS_EACH = 1e-3
THEIRS = {
    "all on device": MegatronOutcome(0.1, 1.0, 1000, 1 << 24, 0, 5),
    "HybridDeviceOptimizer": MegatronOutcome(4.0, 1.0, 1000, 0, 0, 6),
    "chunked-optimizer-offload": MegatronOutcome(1.05, 1.0, 1000, 1 << 19, 0, 5),
}


@pytest.mark.parametrize(
    ("contender", "changed", "told"),
    [
        ("all on device", {}, "met"),
        ("chunked-optimizer-offload", {"seconds": 1.2}, "over 1.10 floors"),
        ("chunked-optimizer-offload", {"state_bytes": 1 << 21}, "over the workspace"),
        ("chunked-optimizer-offload", {"digest": 6}, "weights differ"),
        ("HybridDeviceOptimizer", {"seconds": 3.0}, "less than 3 times faster"),
    ],
)
def test_every_goal_that_is_missed_under_megatron_is_told(contender, changed, told):
    outcomes = {**THEIRS, contender: replace(THEIRS[contender], **changed)}
    assert told in offload.megatron_verdict(outcomes, TASK, SECONDS_EACH, gpu=True)


def test_megatrons_contenders_have_rows_of_their_own_floor_and_facts(monkeypatch):
    monkeypatch.setattr(offload, "_measure_megatron", lambda *_: THEIRS)
    result = offload.measure(TASK, Rank(0, 1, torch.device("cpu")), None)
    assert [row["optimizer"] for row in result["rows"][2:]] == [f"Megatron, {n}" for n in THEIRS]
    assert result["times_faster_than_hybrid"] == pytest.approx(4.0 / 1.05)
    assert result["megatron_weights_equal"] and result["megatron_parameters"] == 1000
