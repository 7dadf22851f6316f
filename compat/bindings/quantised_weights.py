"""Quantised weights made from masters in host memory, a wave of whole weights at a time.

Megatron quantises all weights of an optimizer in one call: each rank has masters of a part of
them, and the ranks agree on a weight's scale in a collective. A wave is one such call for some of
the weights, the same ones on every rank, whose masters fit into a room in the workspace of each.
With two rooms, the next wave's masters come in while Megatron quantises this one's.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

from miles_periodic.hooks.values import OffloadedOptimizer

FP32_BYTES = 4
#: Masters and rooms start at multiples of it, as a kernel that works on whole vectors wants them.
ALIGNMENT = 128
#: FP32 values that are on the device at a time to be rounded; more would gain nothing.
STAGING_BYTES = 32 << 20
LEAST_STAGING_BYTES = ALIGNMENT * FP32_BYTES


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank has of the weights that are quantised together.

    lengths: elements of its master of each weight, 0 where others have it. room_bytes: for the
    rounded masters of a wave.
    """

    lengths: tuple[int, ...]
    room_bytes: int


@dataclass(slots=True)
class Quantising:
    """How the weights of one optimizer are quantised; its waves are agreed on at the first time.

    waves: indices of weights. memory_bytes: of the workspace, cut into `num_rooms` rooms for a
    wave each and a part that masters pass through.
    """

    optimizer: OffloadedOptimizer
    waves: tuple[tuple[int, ...], ...] | None = None
    memory_bytes: int = 0
    num_rooms: int = 1


#: The one whose weights are written now, in this thread.
_NOW: ContextVar[Quantising | None] = ContextVar("quantising", default=None)


@contextmanager
def quantising(optimizer: Quantising | None) -> Iterator[None]:
    """Inside it, what Megatron quantises comes from this optimizer's masters in host memory."""
    token = _NOW.set(optimizer)
    try:
        yield
    finally:
        _NOW.reset(token)


def quantise_in_waves(wrapped, instance, args, kwargs):
    """Symptom: masters of all quantised weights are on the device after each step, at once.

    Trigger: `quantize_param_shard`, called by a DistributedOptimizer whose state is offloaded when
    it writes its weights. Takes down: nothing. Safe because it is Megatron's own call, of the same
    arguments in parts: each weight has an amax and scales of its own, and every rank forms the same
    parts. Masters come rounded to the weight's dtype, which is the first that is done with them in
    any case, so that FP8 keeps the numerics of 16-bit weights. Upstream: NVIDIA/Megatron-LM#6544.
    """
    own = _NOW.get()
    if own is None:
        return wrapped(*args, **kwargs)
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    weights, masters, offsets, group, *_ = given.values()
    lengths = tuple(0 if master is None else master.numel() for master in masters)
    if own.waves is None:
        _agree(own, lengths, [weight.dtype.itemsize for weight in weights], group)
    with own.optimizer.lent_workspace(own.memory_bytes) as memory, _beside(memory.device) as start:
        # What is lent may be more than before, and rooms must stay those that were agreed on.
        agreed = memory[: own.memory_bytes]
        for wave, rounded in _brought(own, weights, masters, agreed, start):
            wrapped([weights[i] for i in wave], rounded, [offsets[i] for i in wave], group)


def least_bytes(length: int, item_bytes: int) -> int:
    """Device memory that rounding a master of so many elements takes."""
    rounded_bytes = _aligned(length) * item_bytes
    third = -(-rounded_bytes // (3 * LEAST_STAGING_BYTES)) * LEAST_STAGING_BYTES
    return rounded_bytes + min(STAGING_BYTES, third)


def plan_waves(shares: Sequence[Share], item_bytes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Every weight in one wave, and no rank's part of a wave over its room.

    A wave takes in turn from the weights that each rank has most of: all of them move masters at
    the same time. item_bytes: of a weight's rounded element. Raises ValueError where one master is
    over a rank's room.
    """
    left = _by_owner(shares)
    waves = []
    while any(left):
        wave: list[int] = []
        used = [0] * len(shares)
        for weights in left:
            while weights and (more := _used_with(weights[0], used, shares, item_bytes)):
                used = more
                wave.append(weights.popleft())
        if not wave:
            raise ValueError("a rank's part of one quantised weight is over its workspace.")
        waves.append(tuple(sorted(wave)))
    return tuple(waves)


def _by_owner(shares: Sequence[Share]) -> list[deque[int]]:
    """Weights in order, by the rank that has most of each."""
    left: list[deque[int]] = [deque() for _ in shares]
    for weight, lengths in enumerate(zip(*(share.lengths for share in shares), strict=True)):
        left[lengths.index(max(lengths))].append(weight)
    return left


def _used_with(
    weight: int, used: Sequence[int], shares: Sequence[Share], item_bytes: Sequence[int]
) -> list[int] | None:
    """Bytes that each rank's part takes with that weight in it; None where it does not fit."""
    more = [
        before + _aligned(share.lengths[weight]) * item_bytes[weight]
        for before, share in zip(used, shares, strict=True)
    ]
    fits = all(taken <= share.room_bytes for taken, share in zip(more, shares, strict=True))
    return more if fits else None


def _agree(own: Quantising, lengths: tuple[int, ...], item_bytes: list[int], group: Any) -> None:
    """Form the waves that every rank of the group forms."""
    import torch.distributed as dist

    sizes = list(zip(lengths, item_bytes, strict=True))
    largest_bytes = max((_aligned(n) * size for n, size in sizes), default=0)
    least = max((least_bytes(n, size) for n, size in sizes), default=0)
    with own.optimizer.lent_workspace(least) as memory:
        own.memory_bytes = memory.numel()
    own.num_rooms = 2 if largest_bytes <= _room_bytes(own.memory_bytes, 2) else 1
    share = Share(lengths, _room_bytes(own.memory_bytes, own.num_rooms))
    shares: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(shares, share, group=group)
    own.waves = plan_waves(shares, item_bytes)


@contextmanager
def _beside(device: Any) -> Iterator[Callable[..., tuple[Any, Callable[[], None]]]]:
    """Inside it, work runs on a stream of its own, after all that the current one has by then.

    A start returns what the work returns, and what lets the current stream wait for its end. On
    exit, also by an error, the current stream waits for all of it. On the CPU all happens at once.
    """
    import torch

    if device.type != "cuda":
        yield lambda work, *args: (work(*args), lambda: None)
        return
    current = torch.cuda.current_stream(device)
    # Kernels that round are short, and would wait for long ones that fill the device.
    beside = torch.cuda.Stream(device, priority=-1)

    def start(work, *args):
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            found, done = work(*args), beside.record_event()
        return found, partial(current.wait_event, done)

    try:
        yield start
    finally:
        current.wait_stream(beside)


def _brought(
    own: Quantising, weights: Sequence[Any], masters: Sequence[Any], memory: Any, start: Callable
) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
    """Each wave and its masters. With two rooms, those of the next are on their way by then.

    A room is filled again after its last masters were quantised, which the current stream has to
    do before the next wave is taken from here.
    """
    rooms, staging = _cut(memory, own.num_rooms)
    started = (
        start(_rounded, weights, masters, wave, room, staging)
        for wave, room in zip(own.waves, cycle(rooms), strict=False)
    )
    coming = deque(islice(started, len(rooms) - 1))
    for wave in own.waves:
        coming.extend(islice(started, 1))
        rounded, wait = coming.popleft()
        wait()
        yield wave, rounded


def _rounded(
    weights: Sequence[Any], masters: Sequence[Any], wave: Sequence[int], room: Any, staging: Any
) -> list[Any]:
    """The masters of a wave in a room, each in its weight's dtype; None of others."""
    found, start = [], 0
    for index in wave:
        master, dtype = masters[index], weights[index].dtype
        if master is None:
            found.append(None)
            continue
        stop = start + _aligned(master.numel()) * dtype.itemsize
        found.append(room[start:stop].view(dtype)[: master.numel()])
        _round(master.view(-1), found[-1], staging)
        start = stop
    return found


def _round(master: Any, rounded: Any, staging: Any) -> None:
    """Through `staging`, in pieces, because a copy of another dtype would hold all of it twice."""
    for first in range(0, master.numel(), staging.numel()):
        piece = master[first : first + staging.numel()]
        staged = staging[: piece.numel()]
        staged.copy_(piece, non_blocking=True)
        rounded[first : first + piece.numel()].copy_(staged)


def _cut(memory: Any, num_rooms: int) -> tuple[list[Any], Any]:
    """Equal rooms in bytes, and in FP32 what masters pass through."""
    import torch

    room_bytes = _room_bytes(memory.numel(), num_rooms)
    used = memory[: num_rooms * room_bytes + _staging_bytes(memory.numel())]
    *rooms, staging = used.tensor_split([room_bytes * n for n in range(1, num_rooms + 1)])
    return rooms, staging.view(torch.float32)


def _room_bytes(memory_bytes: int, num_rooms: int) -> int:
    left_bytes = max(memory_bytes - _staging_bytes(memory_bytes), 0)
    return left_bytes // num_rooms // ALIGNMENT * ALIGNMENT


def _staging_bytes(memory_bytes: int) -> int:
    """A quarter of what there is, so that what `least_bytes` asks for is enough for one room."""
    num_least = min(STAGING_BYTES, memory_bytes // 4) // LEAST_STAGING_BYTES
    return max(num_least, 1) * LEAST_STAGING_BYTES


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
