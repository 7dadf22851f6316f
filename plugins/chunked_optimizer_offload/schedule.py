"""What one step moves: chunks that fit a slot, made of pieces of parameters.

All counts are elements. A parameter that does not fit into what is left of a chunk is split, so
no chunk is ever over its length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT, Extent, aligned


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements start to stop of a flattened parameter, at slot_start of the slot."""

    parameter: int
    start: int
    stop: int
    slot_start: int


@dataclass(frozen=True, slots=True)
class Run:
    """One copy: `length` elements from `start` of a block to slot_start of the slot."""

    block: int
    start: int
    slot_start: int
    length: int


@dataclass(slots=True)
class Chunk:
    """What is resident together. length: elements of the slot that are used."""

    pieces: list[Piece] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    length: int = 0


def plan_chunks(extents: Mapping[int, Extent], chunk_length: int) -> tuple[Chunk, ...]:
    """The chunks of a step over `extents` (parameter to its place), in the order of host memory.

    chunk_length: a multiple of `ALIGNMENT`. Empty parameters have no piece.
    """
    if chunk_length < ALIGNMENT or chunk_length % ALIGNMENT:
        raise ValueError(f"chunk_length {chunk_length} is no multiple of {ALIGNMENT}")
    chunks = [Chunk()]
    in_order = sorted(extents.items(), key=lambda item: (item[1].block, item[1].start))
    for parameter, extent in in_order:
        start = 0
        while start < extent.length:
            if chunks[-1].length == chunk_length:
                chunks.append(Chunk())
            stop = min(extent.length, start + chunk_length - chunks[-1].length)
            _append(chunks[-1], parameter, extent, start, stop)
            start = stop
    return tuple(chunk for chunk in chunks if chunk.pieces)


def _append(chunk: Chunk, parameter: int, extent: Extent, start: int, stop: int) -> None:
    """Put a piece at the end of a chunk; what touches the last run in both places joins it."""
    slot_start, length = chunk.length, stop - start
    chunk.pieces.append(Piece(parameter, start, stop, slot_start))
    here = Run(extent.block, extent.start + start, slot_start, length)
    last = chunk.runs[-1] if chunk.runs else None
    offset = here.start - here.slot_start
    if last and last.block == here.block and last.start - last.slot_start == offset:
        joined = slot_start + length - last.slot_start
        chunk.runs[-1] = Run(last.block, last.start, last.slot_start, joined)
    else:
        chunk.runs.append(here)
    chunk.length += aligned(length)
