"""Tensors to write: what fills each, and what a quantised one has beside it.

Sizes, rows and indices are elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from miles_periodic.plugins.fast_resharding.element_types import ElementType
from miles_periodic.plugins.fast_resharding.families.table import Stacked
from miles_periodic.plugins.fast_resharding.quantising import QUANTISED, SCALE, num_blocks


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `start + rows` of each of a source's groups.

    lead: indices on the source's stacked axes. stacked, expert: where it lies in a target that
    holds all experts; both None where the piece alone is the target.
    """

    source: str
    lead: tuple[int, ...]
    groups: int
    group_rows: int
    start: int
    rows: int
    stacked: Stacked | None = None
    expert: int | None = None


@dataclass(frozen=True)
class Scales:
    """What a quantised target is multiplied with, block by block: a tensor beside it."""

    name: str
    shape: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * SCALE.itemsize


@dataclass(frozen=True)
class Target:
    """One tensor to write, and what belongs to it."""

    name: str
    shape: tuple[int, ...]
    element: ElementType
    source_element: ElementType
    pieces: tuple[Piece, ...]
    scales: Scales | None = None

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.element.itemsize


def quantised(target: Target) -> Target:
    """The target in blocks of FP8, with its scales."""
    rows, columns = target.shape
    scales = Scales(f"{target.name}_scale_inv", num_blocks(rows, columns))
    return replace(target, element=QUANTISED, scales=scales)
