"""A unit's bytes: put together from the chunks that hold them, then in the target's type."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.element_types import element_type
from miles_periodic.plugins.fast_resharding.quantising import quantise
from miles_periodic.plugins.fast_resharding.settings import SLUG
from miles_periodic.plugins.fast_resharding.source_reader import SourceReader
from miles_periodic.plugins.fast_resharding.tasks import Reading, Segment, Unit, source_box

#: What a change of type checks at once: far less than a unit.
_VALUES_AT_ONCE = 1 << 18


def stored_bytes(unit: Unit) -> int:
    """Bytes of the unit in its source's element type."""
    return prod(unit.shape) * element_type(unit.source_element).itemsize


def unit_bytes(unit: Unit, reader: SourceReader, buffer: np.ndarray) -> np.ndarray:
    """What the target's file holds of the unit, uint8 [unit.num_bytes].

    buffer: uint8, at least `stored_bytes(unit)`; the result may lie in it.
    """
    itemsize = element_type(unit.source_element).itemsize
    out = buffer[: stored_bytes(unit)].view(f"u{itemsize}").reshape(unit.shape)
    for reading in unit.readings:
        for segment in reading.segments:
            _read(unit, reading, segment, reader, _place(unit, reading, segment, out))
    return _as_type(unit, out).reshape(-1).view(np.uint8)


def _read(
    unit: Unit, reading: Reading, segment: Segment, reader: SourceReader, out: np.ndarray
) -> None:
    box = source_box(reading, segment)
    out = out[(None,) * len(reading.piece.lead)]
    for chunk in reading.chunks:
        found = chunk.box.intersection(box)
        if found:
            inside = found.relative_to(chunk.box.offsets)
            there = out[found.relative_to(box.offsets).slices()]
            reader.read(reading.piece.source, chunk, inside, unit.source_element, there)


def _place(unit: Unit, reading: Reading, segment: Segment, out: np.ndarray) -> np.ndarray:
    """The segment's rows in the unit, whatever strides they have there."""
    piece = reading.piece
    if piece.stacked is not None:
        out = out[piece.expert - unit.first_row]
        out = out.T if piece.stacked.transposed else out
        out = out[piece.stacked.slot :: piece.stacked.num_slots]
    return out[segment.to_row : segment.to_row + segment.num_rows]


def _as_type(unit: Unit, stored: np.ndarray) -> np.ndarray:
    """The values in the unit's type, a few at a time: what is checked on the way stays small."""
    if unit.element == unit.source_element and not unit.is_quantised:
        return stored
    import torch

    values = torch.from_numpy(stored).view(getattr(torch, unit.source_element))
    if unit.is_quantised:
        return quantise(values, unit.target)
    values = values.reshape(-1)
    changed = torch.empty(values.shape, dtype=getattr(torch, unit.element))
    for start in range(0, len(values), _VALUES_AT_ONCE):
        part = slice(start, start + _VALUES_AT_ONCE)
        changed[part] = values[part]
        _check_kept(unit, values[part].double(), changed[part].double())
    return changed.view(torch.uint8).numpy()


def _check_kept(unit: Unit, values: Any, changed: Any) -> None:
    """Refuse a finite value for which the target's type has none."""
    lost = values.isfinite() & ~changed.isfinite()
    if bool(lost.any()):
        raise PeriodicError(
            f"{unit.target} holds values that {unit.element} cannot.",
            feature=SLUG,
            found=f"{values[lost].abs().max().item():g}",
            remedy="Choose another type with --dtype, such as bfloat16.",
        )
