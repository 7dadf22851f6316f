"""What only a GPU can show of ChunkedAdam: bits, streams, memory. Exits with 1 where one fails.

    python tests/gpu/chunked_offload.py

Takes about a minute on any NVIDIA GPU; the figures come from `miles bench offload`. Lanes are
slowed down by spinning on their streams, so that a missing event shows as wrong bits. With
`--device cpu` the checks that need no GPU run, which shows only that the script does.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "lines"))

from adam_pair import Pair, assert_equal, gradients, parameters, params_of

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam
from miles_periodic.plugins.chunked_optimizer_offload.prepared import PreparedChunk

MIB = 1 << 20
KERNELS = ({}, {"foreach": True}, {"foreach": False}, {"fused": True})
SHAPES = ((), (1,), (0, 3), (127,), (128,), (1000, 33), (65, 129), (1_000_001,), (512, 4096))
LIMITS = {"workspace_bytes": 8 * MIB, "chunk_bytes": MIB}
#: Of an H200, about a millisecond.
SPIN_CYCLES = 2_000_000


def same_bits(device: str) -> None:
    """Every kernel and flag against torch.optim.AdamW on the device."""
    for kernel in KERNELS:
        for flags in ({}, {"amsgrad": True}, {"maximize": True, "weight_decay": 0.0}):
            pair = Pair(SHAPES, LIMITS, device, lr=1e-2, **kernel, **flags)
            for seed in range(4):
                pair.step(seed, without=(seed,))
            pair.assert_equal()


def same_bits_with_a_tensor_as_learning_rate(device: str) -> None:
    pair = Pair(SHAPES, LIMITS, device, lr=torch.tensor(1e-2), fused=True)
    for seed in range(3):
        pair.step(seed)
    pair.assert_equal()


def same_bits_however_slow_a_lane_is(device: str) -> None:
    """Each lane in turn takes a millisecond longer per chunk; steps follow without a wait."""
    for name in ("load", "widen", "drain"):
        work = getattr(PreparedChunk, name)

        def slow(chunk, work=work):
            if device == "cuda":
                torch.cuda._sleep(SPIN_CYCLES)
            work(chunk)

        setattr(PreparedChunk, name, slow)
        try:
            pair = Pair(SHAPES, LIMITS, device)
            for seed in range(4):
                pair.step(seed, without=(seed,))
            pair.assert_equal()
        finally:
            setattr(PreparedChunk, name, work)


def same_bits_on_another_stream_in_each_step(device: str) -> None:
    pair = Pair(SHAPES, LIMITS, device)
    for seed in range(4):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            pair.step(seed)
        torch.cuda.current_stream().wait_stream(stream)
    pair.assert_equal()


def bf16_moments_are_rounded_to_nearest(device: str) -> None:
    native = torch.optim.AdamW(parameters(SHAPES, device))
    ours = ChunkedAdam(parameters(SHAPES, device), moment_dtype=torch.bfloat16, **LIMITS)
    for seed in range(3):
        for optimizer in (native, ours):
            drawn = gradients(SHAPES, seed, device)
            for param, grad in zip(params_of(optimizer), drawn, strict=True):
                param.grad = grad
            optimizer.step()
        for state in native.state.values():
            for kind in ("exp_avg", "exp_avg_sq"):
                state[kind].copy_(state[kind].bfloat16())
    for theirs, mine in zip(params_of(native), params_of(ours), strict=True):
        assert torch.equal(theirs.detach().cpu(), ours.master(mine))


def checkpoints_go_both_ways(device: str) -> None:
    for kernel in ({}, {"fused": True}):
        pair = Pair(SHAPES, LIMITS, device, **kernel)
        pair.step(0)
        native = torch.optim.AdamW(parameters(SHAPES, device), **kernel)
        native.load_state_dict(pair.chunked.state_dict())
        chunked = ChunkedAdam(parameters(SHAPES, device), **kernel, **LIMITS)
        before = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        chunked.load_state_dict(pair.native.state_dict())
        after = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        assert after == before, "loading allocated on the device"
        for theirs, mine in zip(params_of(native), params_of(chunked), strict=True):
            chunked.master(mine).copy_(theirs.detach())
        assert_equal(native, chunked)


def host_memory_is_pinned_and_stays(device: str) -> None:
    pair = Pair(SHAPES, LIMITS, device)
    pair.step(0)
    params = params_of(pair.chunked)
    kept = [pair.chunked.master(p) for p in params if p.numel()]
    kept += [
        pair.chunked.state[p][k] for p in params if p.numel() for k in ("exp_avg", "exp_avg_sq")
    ]
    assert all(tensor.is_pinned() for tensor in kept)
    before = [tensor.data_ptr() for tensor in kept]
    pair.step(1)
    pair.assert_equal()
    assert [pair.chunked.master(p).data_ptr() for p in params if p.numel()] == before[
        : len(kept) // 3
    ]


def reading_after_a_step_waits_for_it(device: str) -> None:
    """With drains slowed down, the first look at the state must see what the step made."""
    pair = Pair(((4_000_000,),), LIMITS, device)
    drain = PreparedChunk.drain

    def slow(chunk):
        torch.cuda._sleep(SPIN_CYCLES)
        drain(chunk)

    PreparedChunk.drain = slow
    try:
        pair.step(0)
        (param,) = params_of(pair.chunked)
        assert bool(pair.chunked.state[param]["exp_avg"].all())
        pair.step(1)
        with pair.chunked.resident():
            assert torch.equal(param.data, params_of(pair.native)[0].data)
    finally:
        PreparedChunk.drain = drain


def no_allocation_after_the_first_step(device: str) -> None:
    """Neither from the driver nor, but for what a kernel frees again, from torch's allocator."""
    (param,) = parameters(((20_000_000,),), device)
    for kernel in KERNELS:
        optimizer = ChunkedAdam([param], workspace_bytes=64 * MIB, **kernel)
        param.grad = torch.ones(param.shape, device=device)
        optimizer.step()
        torch.cuda.synchronize()
        held, stats = torch.cuda.memory_allocated(), torch.cuda.memory_stats()
        host = torch.cuda.host_memory_stats()
        for _ in range(4):
            optimizer.step()
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == held
        after = torch.cuda.memory_stats()
        assert after["segment.all.allocated"] == stats["segment.all.allocated"]
        assert torch.cuda.host_memory_stats()["num_host_alloc"] == host["num_host_alloc"]
        optimizer.release()


def a_step_stays_within_the_workspace(device: str) -> None:
    """Its peak over what was there before, temporaries included."""
    for kernel in KERNELS:
        for options in ({}, {"amsgrad": True}, {"maximize": True}):
            params = parameters(((20_000_000,), (3_000_000,)), device)
            limit = 96 * MIB
            optimizer = ChunkedAdam(params, workspace_bytes=limit, **kernel, **options)
            for param in params:
                param.grad = torch.ones(param.shape, device=device)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(2):
                optimizer.step()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            assert peak <= limit, f"{peak / MIB:.1f} MiB with {kernel} {options}"
            del optimizer, params


def both_directions_overlap_each_other_and_the_step(device: str) -> None:
    """A step takes less than loading everything and then draining it, by a third and more."""
    (param,) = parameters(((200_000_000,),), device)
    optimizer = ChunkedAdam([param], workspace_bytes=256 * MIB)
    param.grad = torch.ones(param.shape, device=device)
    for _ in range(2):
        whole = _seconds(optimizer.step)
    plan = optimizer._stepper._plan

    def move(way: Callable[[PreparedChunk], None]) -> None:
        for chunk in plan:
            way(chunk)

    ways = (PreparedChunk.load, PreparedChunk.drain)
    one_way = sum(_seconds(lambda way=way: move(way)) for way in ways)
    print(f"    step {whole * 1e3:.1f} ms; load, then drain {one_way * 1e3:.1f} ms")
    assert whole < one_way / 1.5


def _seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def nothing_is_left_after_release(device: str) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    (param,) = parameters(((1_000_000,),), device)
    with_data = torch.cuda.memory_allocated() - before
    optimizer = ChunkedAdam([param], **LIMITS)
    param.grad = torch.ones(param.shape, device=device)
    optimizer.step()
    param.grad = None
    optimizer.release()
    assert torch.cuda.memory_allocated() - before == with_data


ANYWHERE = (
    same_bits,
    same_bits_with_a_tensor_as_learning_rate,
    same_bits_however_slow_a_lane_is,
    bf16_moments_are_rounded_to_nearest,
    checkpoints_go_both_ways,
)
ON_A_GPU = (
    same_bits_on_another_stream_in_each_step,
    host_memory_is_pinned_and_stays,
    reading_after_a_step_waits_for_it,
    no_allocation_after_the_first_step,
    a_step_stays_within_the_workspace,
    both_directions_overlap_each_other_and_the_step,
    nothing_is_left_after_release,
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = options.parse_args().device
    failed = 0
    for check in ANYWHERE + (ON_A_GPU if device == "cuda" else ()):
        began = time.perf_counter()
        try:
            check(device)
            outcome = "ok"
        except Exception:
            traceback.print_exc()
            outcome, failed = "FAILED", failed + 1
        name = check.__name__.replace("_", " ")
        print(f"{outcome:<8}{name} ({time.perf_counter() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
