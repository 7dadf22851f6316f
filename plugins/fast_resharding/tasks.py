"""Work for a worker: stretches of shards, and the chunks that they are read from.

A task holds everything that a worker needs, so that none reads the checkpoint's metadata. Rows are
counted along a tensor's first axis.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from miles_periodic.plugins.fast_resharding.boxes import Box
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Chunk, SourceTensor
from miles_periodic.plugins.fast_resharding.element_types import element_type
from miles_periodic.plugins.fast_resharding.node_files import ANYWHERE, NodeFiles
from miles_periodic.plugins.fast_resharding.quantising import BLOCK, SCALE
from miles_periodic.plugins.fast_resharding.shard_layout import Layout, Shard
from miles_periodic.plugins.fast_resharding.targets import Piece, Target


class Segment(NamedTuple):
    """Rows of a source that are consecutive in the target, too; `to_row` counts in the unit."""

    from_row: int
    num_rows: int
    to_row: int


@dataclass(frozen=True)
class Reading:
    """What a unit takes from one source: `segments` of a piece, found in `chunks`.

    row_sizes: the source's sizes behind its rows.
    """

    piece: Piece
    segments: tuple[Segment, ...]
    row_sizes: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Unit:
    """Rows of one target: what is read, checksummed and written in one go.

    extents: (first byte, bytes) in `shard` of the rows, then of their scales where the target is
    quantised. first_row: of the target. shape: of these rows.
    """

    target: str
    shard: str
    extents: tuple[tuple[int, int], ...]
    first_row: int
    shape: tuple[int, ...]
    element: str
    source_element: str
    readings: tuple[Reading, ...]

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.extents)

    @property
    def is_quantised(self) -> bool:
        return len(self.extents) > 1


@dataclass(frozen=True)
class Task:
    """homes: nodes that hold the most of what it reads; `ANYWHERE` if all hold all."""

    number: int
    units: tuple[Unit, ...]
    homes: frozenset[str] = ANYWHERE

    @property
    def num_bytes(self) -> int:
        return sum(unit.num_bytes for unit in self.units)


def make_tasks(
    layout: Layout,
    sources: Mapping[str, SourceTensor],
    files: NodeFiles,
    *,
    unit_bytes: int,
    task_bytes: int,
) -> list[Task]:
    """Tasks of about `task_bytes` each, of neighbouring units, so of like size for any model.

    All units of a task have the same homes.

    A unit is at most `unit_bytes` in its source's and in its target's element type, or one row, or
    one row of blocks where the target is quantised.
    """
    chunks = _ChunksByMember(sources)
    tasks: list[Task] = []
    waiting: dict[frozenset[str], list[Unit]] = defaultdict(list)
    filled: Counter[frozenset[str]] = Counter()
    for unit in _units(layout, chunks, unit_bytes):
        homes = ANYWHERE if files.all_everywhere else files.homes(source_bytes(unit))
        if waiting[homes] and filled[homes] + unit.num_bytes > task_bytes:
            tasks.append(Task(len(tasks), tuple(waiting.pop(homes)), homes))
            del filled[homes]
        waiting[homes].append(unit)
        filled[homes] += unit.num_bytes
    for homes, units in waiting.items():
        tasks.append(Task(len(tasks), tuple(units), homes))
    return tasks


def source_bytes(unit: Unit) -> dict[str, int]:
    """Bytes that the unit reads of each file."""
    found: Counter[str] = Counter()
    itemsize = element_type(unit.source_element).itemsize
    for reading in unit.readings:
        for segment, chunk in product(reading.segments, reading.chunks):
            inside = chunk.box.intersection(source_box(reading, segment))
            found[chunk.file] += inside.num_elements * itemsize if inside else 0
    return found


def segments(piece: Piece, first_row: int, num_rows: int) -> Iterator[Segment]:
    """Of the target's rows `first_row` to `first_row + num_rows`, those that the piece fills."""
    end = first_row + num_rows
    for group in range(first_row // piece.target_rows, -(-end // piece.target_rows)):
        begin = group * piece.target_rows + piece.first
        row, stop = max(begin, first_row), min(begin + piece.rows, end)
        if row < stop:
            from_row = group * piece.group_rows + piece.start + row - begin
            yield Segment(from_row, stop - row, row - first_row)


def _units(layout: Layout, chunks: _ChunksByMember, unit_bytes: int) -> Iterator[Unit]:
    for shard in layout.shards:
        for target in shard.targets:
            most = _most_rows(target, unit_bytes)
            for first in range(0, target.shape[0], most):
                rows = min(most, target.shape[0] - first)
                yield Unit(
                    target.name,
                    shard.name,
                    tuple(_extents(target, shard, first, rows)),
                    first,
                    (rows, *target.shape[1:]),
                    target.element.name,
                    target.source_element.name,
                    tuple(_readings(target, first, rows, chunks)),
                )


def _most_rows(target: Target, unit_bytes: int) -> int:
    """Rows of a unit: at least one, or one row of blocks."""
    wider = max(target.element.itemsize, target.source_element.itemsize)
    most = unit_bytes // max(1, prod(target.shape[1:]) * wider)
    return max(BLOCK, most // BLOCK * BLOCK) if target.scales else max(1, most)


def _extents(target: Target, shard: Shard, first: int, rows: int) -> Iterator[tuple[int, int]]:
    row_bytes = prod(target.shape[1:]) * target.element.itemsize
    yield shard.starts[target.name] + first * row_bytes, rows * row_bytes
    if target.scales:
        row_bytes = target.scales.shape[1] * SCALE.itemsize
        start = shard.starts[target.scales.name] + first // BLOCK * row_bytes
        yield start, -(-rows // BLOCK) * row_bytes


def _readings(target: Target, first: int, rows: int, chunks: _ChunksByMember) -> Iterator[Reading]:
    for piece in target.pieces:
        if piece.stacked is None:
            found = tuple(segments(piece, first, rows))
        elif first <= piece.expert < first + rows:
            found = tuple(segments(piece, 0, piece.groups * piece.rows))
        else:
            found = ()
        if found:
            held = tuple(chunks.that_hold(piece, found))
            yield Reading(piece, found, chunks.row_sizes(piece), held)


class _ChunksByMember:
    """The chunks of each source, found by their indices on the stacked axes."""

    def __init__(self, sources: Mapping[str, SourceTensor]) -> None:
        self._sources = sources
        self._found: dict[tuple[str, int], dict[tuple[int, ...], list[Chunk]]] = {}

    def row_sizes(self, piece: Piece) -> tuple[int, ...]:
        return self._sources[piece.source].shape[len(piece.lead) + 1 :]

    def that_hold(self, piece: Piece, wanted: Sequence[Segment]) -> Iterator[Chunk]:
        num_stacked = len(piece.lead)
        for chunk in self._members(piece.source, num_stacked)[piece.lead]:
            start = chunk.box.offsets[num_stacked]
            end = start + chunk.box.sizes[num_stacked]
            if any(s.from_row < end and start < s.from_row + s.num_rows for s in wanted):
                yield chunk

    def _members(self, key: str, num_stacked: int) -> dict[tuple[int, ...], list[Chunk]]:
        found = self._found.get((key, num_stacked))
        if found is None:
            found = defaultdict(list)
            for chunk in self._sources[key].chunks:
                stacked = zip(*chunk.box, strict=True)
                spans = [range(a, a + n) for a, n in list(stacked)[:num_stacked]]
                for lead in product(*spans):
                    found[lead].append(chunk)
            self._found[key, num_stacked] = found
        return found


def source_box(reading: Reading, segment: Segment) -> Box:
    """The elements of the source that a segment is."""
    lead = reading.piece.lead
    behind = reading.row_sizes
    return Box(
        (*lead, segment.from_row, *(0 for _ in behind)),
        (*(1 for _ in lead), segment.num_rows, *behind),
    )
