"""What an optimizer step costs with its state in host memory, and what the link allows.

All contenders of a run get the same parameters and gradients, and the link is measured in the same
process. Under torchrun each rank holds its share of the parameters, as a sharded optimizer's ranks
do, and all ranks use the links of the host at once.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from miles_periodic.compat.bench.optimizer_step import LARGE_MODEL_PARAMETERS, NATIVE
from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam

MIB = 1 << 20
BUFFER_BYTES = {"cuda": 256 * MIB, "cpu": MIB}
NUM_COPIES = 8
NUM_ROUNDS = 4
#: Steps before the timed ones: the first allocates.
NUM_WARM_UP_STEPS = 2
KERNELS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
OPTIONS = {"lr": 1e-4, "weight_decay": 0.01, "betas": (0.9, 0.95)}
#: Elements that a digest takes at once: it holds 8 bytes of bits and 8 of places for each.
_DIGEST_LENGTH = 1 << 24
_PRIME = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Task:
    """What every contender does. chunk_bytes: None for as many as let four into the workspace."""

    num_parameters: int
    kernel: str
    workspace_bytes: int
    chunk_bytes: int | None
    moment_dtype: str
    num_steps: int

    def bytes_each_way(self) -> int:
        """Per parameter: a master and two moments."""
        return 4 + 2 * getattr(torch, self.moment_dtype).itemsize


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among those of torchrun; alone without it."""

    number: int
    count: int
    device: torch.device

    def wait(self) -> None:
        """For the device, then for the other ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.count > 1:
            torch.distributed.barrier()

    def everyone(self, value: Any) -> list[Any]:
        """What each rank says."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values


@contextmanager
def this_rank() -> Iterator[Rank]:
    """Join the other ranks where torchrun started this process. One GPU each, else the CPU."""
    number, count = (int(os.environ.get(name, d)) for name, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    local = int(os.environ.get("LOCAL_RANK", 0))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if count > 1:
        torch.distributed.init_process_group("gloo")
    try:
        yield Rank(number, count, device)
    finally:
        if count > 1:
            torch.distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One contender. Times are the slowest rank's, bytes the largest's.

    seconds: median step, until host memory is written. state_bytes: masters and moments that stay
    on the device. peak_bytes: of the device after the first step, gradients included; 0 without a
    GPU. digest: of all masters and moments. first_seconds: construction and first step, where
    memory is allocated.
    """

    name: str
    seconds: float
    first_seconds: float
    state_bytes: int
    peak_bytes: int
    digest: tuple[int, ...]
    num_chunks: int = 0


def link_rate(rank: Rank) -> float:
    """Bytes per second each way, both at once, of pinned memory; the best of some rounds.

    Without a GPU both copies run one after the other in plain memory.
    """
    gpu = rank.device.type == "cuda"
    size = BUFFER_BYTES[rank.device.type]
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=gpu) for _ in range(2)]
    device = [torch.empty(size, dtype=torch.uint8, device=rank.device) for _ in range(2)]
    streams = [torch.cuda.Stream(rank.device) if gpu else None for _ in range(2)]
    best = float("inf")
    for _ in range(NUM_ROUNDS):
        rank.wait()
        began = time.perf_counter()
        for _ in range(NUM_COPIES):
            with torch.cuda.stream(streams[0]):
                device[0].copy_(host[0], non_blocking=True)
            with torch.cuda.stream(streams[1]):
                host[1].copy_(device[1], non_blocking=True)
        if gpu:
            torch.cuda.synchronize(rank.device)
        best = min(best, max(rank.everyone(time.perf_counter() - began)))
    return NUM_COPIES * size / best


def shapes(num_parameters: int) -> list[tuple[int, ...]]:
    """A transformer's: an embedding, then layers of four matrices and two vectors, cut to size."""
    hidden = 5120 if num_parameters >= LARGE_MODEL_PARAMETERS else 256
    layer = [(hidden,), (3 * hidden, hidden), (hidden, hidden)]
    layer += [(hidden,), (4 * hidden, hidden), (hidden, 4 * hidden)]
    found: list[tuple[int, ...]] = [(max(num_parameters // 8, 1),)]
    left = num_parameters - found[0][0]
    while left > 0:
        for shape in layer:
            size = torch.Size(shape).numel()
            if left > 0:
                found.append(shape if size <= left else (left,))
                left -= min(size, left)
    return found


def contest(task: Task, rank: Rank, tell: Callable[[str], None]) -> tuple[float, list[Outcome]]:
    """The link's bytes per second each way, and every contender's outcome.

    A contender that does not fit on the device has a time of infinity.
    """
    tell(f"measuring the link of {rank.device}")
    rates = [link_rate(rank)]
    outcomes = []
    for name, build in CONTENDERS.items():
        tell(f"stepping {task.num_parameters:,} parameters: {name}")
        outcomes.append(_run(name, build, task, rank))
    rates.append(link_rate(rank))
    return max(rates), outcomes


def _native(params: Sequence[torch.Tensor], task: Task) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, **OPTIONS, **KERNELS[task.kernel])


def _chunked(params: Sequence[torch.Tensor], task: Task) -> torch.optim.Optimizer:
    return ChunkedAdam(
        params,
        **OPTIONS,
        **KERNELS[task.kernel],
        workspace_bytes=task.workspace_bytes,
        chunk_bytes=task.chunk_bytes,
        moment_dtype=getattr(torch, task.moment_dtype),
    )


CONTENDERS = {NATIVE: _native, "ChunkedAdam": _chunked}


def _run(name: str, build: Callable[..., Any], task: Task, rank: Rank) -> Outcome:
    """Every rank must leave with an outcome, or the others would wait for it."""
    try:
        mine = _steps(build, task, rank)
    except torch.OutOfMemoryError:
        mine = Outcome(name, float("inf"), float("inf"), 0, 0, ())
    gc.collect()
    if rank.device.type == "cuda":
        torch.cuda.empty_cache()
    return _slowest(name, rank.everyone(mine))


def _slowest(name: str, outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        name,
        *(
            max(getattr(outcome, field) for outcome in outcomes)
            for field in ("seconds", "first_seconds", "state_bytes", "peak_bytes")
        ),
        tuple(part for outcome in outcomes for part in outcome.digest),
        max(outcome.num_chunks for outcome in outcomes),
    )


def _steps(build: Callable[..., Any], task: Task, rank: Rank) -> Outcome:
    params = _parameters(task, rank)
    gpu = rank.device.type == "cuda"
    began = time.perf_counter()
    optimizer = build(params, task)
    seconds = []
    for _ in range(NUM_WARM_UP_STEPS + task.num_steps):
        seconds.append(_timed(optimizer.step, rank) if seconds else _first(optimizer, rank, began))
    peak = torch.cuda.max_memory_allocated(rank.device) if gpu else 0
    timed = statistics.median(seconds[NUM_WARM_UP_STEPS:])
    chunked = isinstance(optimizer, ChunkedAdam)
    state = optimizer.device_bytes() if chunked else _state_bytes(optimizer, params)
    num_chunks = optimizer.last_step.num_chunks if chunked else 0
    digest = _digest(optimizer, params, rank.device)
    return Outcome("", timed, seconds[0], state, peak, digest, num_chunks)


def _first(optimizer: torch.optim.Optimizer, rank: Rank, began: float) -> float:
    """Seconds since `began`, when the first step is over; the peak is counted from here on."""
    _timed(optimizer.step, rank)
    if rank.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(rank.device)
    return time.perf_counter() - began


def _timed(step: Callable[[], Any], rank: Rank) -> float:
    """Seconds until the device is done with it, host memory included."""
    rank.wait()
    began = time.perf_counter()
    step()
    if rank.device.type == "cuda":
        torch.cuda.synchronize(rank.device)
    return time.perf_counter() - began


def _parameters(task: Task, rank: Rank) -> list[torch.Tensor]:
    """This rank's share, and noise as gradients, the same for every contender."""
    share = task.num_parameters // rank.count
    draw = torch.Generator(rank.device).manual_seed(1 + rank.number)
    params = []
    for shape in shapes(share):
        param = torch.empty(shape, device=rank.device).normal_(std=0.02, generator=draw)
        param.grad = torch.empty_like(param).normal_(std=1e-3, generator=draw)
        params.append(param)
    return params


def _state_bytes(optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor]) -> int:
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return sum(tensor.nbytes for tensor in [*params, *kept] if tensor.device == params[0].device)


def _digest(
    optimizer: Any, params: Sequence[torch.Tensor], device: torch.device
) -> tuple[int, ...]:
    """One number for each kind of state, made of the bits of every element and its place."""
    sums = [0, 0, 0]
    for number, param in enumerate(params):
        state = optimizer.state[param]
        chunked = isinstance(optimizer, ChunkedAdam)
        data = optimizer.master(param) if chunked else param.detach()
        for kind, tensor in enumerate((data, state["exp_avg"], state["exp_avg_sq"])):
            for start in range(0, tensor.numel(), _DIGEST_LENGTH):
                part = tensor.reshape(-1)[start : start + _DIGEST_LENGTH].to(device)
                bits = part.view(torch.int32 if part.itemsize == 4 else torch.int16)
                places = torch.arange(1, bits.numel() + 1, device=device) + number
                sums[kind] = (sums[kind] * 31 + int((bits * places).sum())) % _PRIME
    return tuple(sums)
