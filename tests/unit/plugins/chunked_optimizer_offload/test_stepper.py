"""Numbers of whole steps on lanes that run in any order that the events allow."""

from unittest import mock

import pytest
import torch
from adam_pair import Pair
from hypothesis import given, settings
from hypothesis import strategies as st
from queued_lanes import QueuedDevice

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam, StepFailed

SHAPES = ((300,), (2, 400), (1,), (1500,), (130,))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1 << 30),
    steps=st.lists(st.sets(st.integers(0, len(SHAPES) - 1)), min_size=1, max_size=4),
    chunk_bytes=st.sampled_from([1536, 6144, 20_000]),
    settle=st.booleans(),
)
def test_whatever_the_lanes_speeds_masters_and_moments_are_those_of_the_native_step(
    seed, steps, chunk_bytes, settle
):
    pair = Pair(SHAPES, {"workspace_bytes": 1 << 17, "chunk_bytes": chunk_bytes})
    pair.chunked._stepper.make_lanes = QueuedDevice(seed).lanes
    for number, without in enumerate(steps):
        pair.step(number, without)
        if settle:
            pair.chunked.synchronize()
    pair.assert_equal()


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=10)
def test_whatever_the_lanes_speeds_the_callback_sees_what_the_step_made(seed):
    pair = Pair(SHAPES)
    pair.chunked._stepper.make_lanes = QueuedDevice(seed).lanes
    seen = {param: torch.full((param.numel(),), torch.nan) for param in pair.chunked.state}
    seen |= {p: torch.full((p.numel(),), torch.nan) for p in pair.chunked.param_groups[0]["params"]}

    def note(pieces):
        for param, start, stop, master in pieces:
            seen[param][start:stop] = master

    pair.chunked.on_stepped = note
    for number in range(3):
        pair.step(number)
    pair.chunked.synchronize()
    for param, values in seen.items():
        assert torch.equal(values.view(param.shape), pair.chunked.master(param))


def broken_at(call, error=ZeroDivisionError):
    """A callback that fails when it is called the `call`-th time."""
    calls = []

    def callback(*given):
        calls.append(given)
        if len(calls) == call:
            raise error("no")

    return callback


def test_arithmetic_that_fails_in_the_first_chunk_leaves_everything_as_it_was():
    pair = Pair()
    pair.step(0)
    for param in pair.chunked.param_groups[0]["params"]:
        param.grad = torch.ones(param.shape)
    with (
        mock.patch.object(pair.chunked._stepper.rule, "step", broken_at(1)),
        pytest.raises(StepFailed, match=r"chunk 0 of \d+ failed.*Nothing was written") as failed,
    ):
        pair.chunked.step()
    assert not failed.value.half_stepped and isinstance(failed.value.__cause__, ZeroDivisionError)
    pair.assert_equal()
    pair.step(1)
    pair.assert_equal()


@pytest.mark.parametrize("use", [ChunkedAdam.step, ChunkedAdam.state_dict])
def test_after_a_callback_that_wrote_and_raised_nothing_is_stepped_or_saved(use):
    pair = Pair()
    weights = {
        param: torch.zeros(param.numel()) for param in pair.chunked.param_groups[0]["params"]
    }

    def write_and_fail(pieces):
        for piece in pieces:
            weights[piece.param][piece.start : piece.stop] = piece.master
        raise OSError("no")

    pair.chunked.on_stepped = write_and_fail
    with pytest.raises(StepFailed, match=r"chunk 0 of .*weights may be ahead") as failed:
        pair.step(0)
    assert failed.value.half_stepped and any(weight.any() for weight in weights.values())
    with pytest.raises(RuntimeError, match="chunk 0 of .* half stepped"):
        use(pair.chunked)


def test_a_step_that_fails_midway_says_which_chunk_and_that_state_is_half_stepped():
    pair = Pair()
    pair.chunked.on_stepped = broken_at(3)
    with pytest.raises(StepFailed, match=r"chunk 2 of \d+ failed: ZeroDivisionError.*half stepped"):
        pair.step(0)


@pytest.mark.parametrize("use", [ChunkedAdam.step, ChunkedAdam.state_dict])
def test_after_half_a_step_nothing_is_stepped_or_saved(use):
    pair = Pair()
    pair.chunked.on_stepped = broken_at(3)
    with pytest.raises(StepFailed):
        pair.step(0)
    with pytest.raises(RuntimeError, match="chunk 2 of .* load masters, state and weights"):
        use(pair.chunked)


def test_after_half_a_step_a_checkpoint_of_masters_and_state_makes_it_whole():
    pair = Pair()
    pair.step(0)
    masters = [pair.chunked.master(p).clone() for p in pair.chunked.param_groups[0]["params"]]
    saved = torch.optim.AdamW([torch.zeros(shape) for shape in pair.shapes])
    saved.load_state_dict(pair.native.state_dict())
    pair.chunked.on_stepped = broken_at(3)
    with pytest.raises(StepFailed):
        pair.step(1)
    pair.chunked.on_stepped = None
    pair.chunked.load_state_dict(saved.state_dict())
    pair.native.load_state_dict(saved.state_dict())
    for ours, theirs, data in zip(
        *(o.param_groups[0]["params"] for o in (pair.chunked, pair.native)), masters, strict=True
    ):
        pair.chunked.master(ours).copy_(data)
        theirs.data.copy_(data)
    pair.chunked.mark_restored()
    pair.step(2)
    pair.assert_equal()


def test_after_half_a_step_a_state_without_masters_is_not_trained_on():
    pair = Pair()
    pair.step(0)
    saved = pair.native.state_dict()
    pair.chunked.on_stepped = broken_at(3)
    with pytest.raises(StepFailed):
        pair.step(1)
    pair.chunked.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="half stepped"):
        pair.step(2)


def test_an_interruption_midway_passes_as_it_is_and_is_not_forgotten():
    pair = Pair()
    pair.chunked.on_stepped = broken_at(3, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        pair.step(0)
    with pytest.raises(RuntimeError, match="KeyboardInterrupt.*half stepped"):
        pair.chunked.step()


def test_a_report_tells_what_was_moved():
    pair = Pair(((256,), (128,)), {"workspace_bytes": 1 << 16, "chunk_bytes": 12 * 128})
    pair.step(0, without=(1,))
    report = pair.chunked.last_step
    assert (report.num_chunks, report.num_pieces) == (2, 2)
    assert (report.bytes_in, report.bytes_out) == (12 * 256, 12 * 256)


def test_nothing_is_allocated_after_the_first_step():
    pair = Pair()
    pair.step(0)
    before = held(pair.chunked)
    for seed in range(1, 4):
        pair.step(seed, without=(seed,))
    assert held(pair.chunked) == before


def held(optimizer: ChunkedAdam) -> set[int]:
    """Addresses of the workspace and of all host memory."""
    stepper = optimizer._stepper
    blocks = [b for kind in stepper.residency.host._blocks.values() for b in kind]
    return {t.data_ptr() for t in (stepper.workspace._memory, *blocks)}
