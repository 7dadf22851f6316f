"""Boxes of tensors: offsets and sizes in elements, one of each per axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple


class Box(NamedTuple):
    """Elements `offsets[i] <= x[i] < offsets[i] + sizes[i]` of each axis."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.sizes)

    def intersection(self, other: Box) -> Box | None:
        """What both hold; None where that is nothing."""
        offsets, sizes = [], []
        for a, n, b, m in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True):
            start, stop = max(a, b), min(a + n, b + m)
            if start >= stop:
                return None
            offsets.append(start)
            sizes.append(stop - start)
        return Box(tuple(offsets), tuple(sizes))

    def relative_to(self, origin: Sequence[int]) -> Box:
        """The same elements, counted from `origin`."""
        return Box(tuple(a - o for a, o in zip(self.offsets, origin, strict=True)), self.sizes)

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, a + n) for a, n in zip(self.offsets, self.sizes, strict=True))


def tiling_fault(shape: Sequence[int], boxes: Sequence[Box]) -> str:
    """What keeps `boxes` from holding every element of `shape` exactly once; empty if nothing.

    Boxes are cut along an axis into slabs wherever no box crosses the cut, axis after axis: what
    cannot be cut any more is one box, or boxes that overlap or interlock. Interlocking boxes
    (a pinwheel) are compared in pairs.
    """
    whole = Box((0,) * len(shape), tuple(shape))
    for box in boxes:
        if len(box.sizes) != len(shape):
            return f"the chunk at {list(box.offsets)} has {len(box.sizes)} axes"
        if box.num_elements and box.intersection(whole) != box:
            return f"the chunk at {list(box.offsets)} of {list(box.sizes)} reaches out of it"
    boxes = [box for box in boxes if box.num_elements]
    overlap = _overlap(boxes, len(shape))
    if overlap:
        return "the chunks at {} and {} overlap".format(*(list(b.offsets) for b in overlap))
    missing = prod(shape) - sum(box.num_elements for box in boxes)
    return f"{missing:,} of {prod(shape):,} elements are missing" if missing else ""


def _overlap(
    boxes: Sequence[Box], num_axes: int, axis: int = 0, uncut: int = 0
) -> tuple[Box, Box] | None:
    """Two boxes that share an element, or None.

    uncut: axes in a row along which nothing could be cut.
    """
    if len(boxes) < 2:
        return None
    if uncut == num_axes:
        return _overlapping_pair(boxes)
    slabs = _slabs(boxes, axis)
    uncut = uncut + 1 if len(slabs) == 1 else 1
    for slab in slabs:
        found = _overlap(slab, num_axes, (axis + 1) % num_axes, uncut)
        if found:
            return found
    return None


def _slabs(boxes: Sequence[Box], axis: int) -> list[list[Box]]:
    """`boxes` in groups that are apart along `axis`."""
    slabs: list[list[Box]] = []
    end = 0
    for box in sorted(boxes, key=lambda each: each.offsets[axis]):
        if slabs and box.offsets[axis] < end:
            slabs[-1].append(box)
        else:
            slabs.append([box])
        end = max(end, box.offsets[axis] + box.sizes[axis])
    return slabs


def _overlapping_pair(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            if one.intersection(other):
                return other, one
    return None
