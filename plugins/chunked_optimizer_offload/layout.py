"""Where each parameter lies in host memory: in blocks, in order, aligned, none over two blocks.

All counts are elements. Masters and both moments share one layout, so that neighbouring
parameters are neighbours in each of them and move in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Pieces start at multiples of it, so that a kernel that works on whole vectors of elements takes
#: the same ones from a piece as from the whole parameter. 512 bytes of fp32.
ALIGNMENT = 128
#: 1 GiB of fp32. The allocator of pinned memory rounds up to a power of two: parameters share
#: blocks of that size, because each alone could take twice its size.
BLOCK_LENGTH = 1 << 28


@dataclass(frozen=True, slots=True)
class Extent:
    """A parameter's place: elements start to start + length of a block."""

    block: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """extents: one per parameter, in their order. block_lengths: what each block must hold."""

    extents: tuple[Extent, ...]
    block_lengths: tuple[int, ...]


def aligned(length: int) -> int:
    """`length` rounded up to `ALIGNMENT`."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def lay_out(lengths: Sequence[int], block_length: int = BLOCK_LENGTH) -> Layout:
    """First fit, in order. A parameter over `block_length` opens a block of a power of two."""
    capacities: list[int] = []
    used: list[int] = []
    extents = []
    for length in lengths:
        block = _first_with_room(capacities, used, length)
        if block == len(capacities):
            capacities.append(max(block_length, 1 << max(length - 1, 0).bit_length()))
            used.append(0)
        extents.append(Extent(block, used[block], length))
        used[block] += aligned(length)
    return Layout(tuple(extents), tuple(used))


def _first_with_room(capacities: Sequence[int], used: Sequence[int], length: int) -> int:
    for block, capacity in enumerate(capacities):
        if used[block] + length <= capacity:
            return block
    return len(capacities)
