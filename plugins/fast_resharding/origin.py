"""The model that training started from: which tensors its files have, and of which types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.element_types import BY_CODE, ElementType
from miles_periodic.plugins.fast_resharding.settings import SLUG

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LARGEST_HEADER_BYTES = 100 << 20
_COMPANION = re.compile(r"_(?:scale_inv|scale|scales|shape)")
_PACKED = re.compile(r"_(?:packed|blocks)")


@dataclass(frozen=True)
class Origin:
    """names: every tensor, as if none were quantised; empty where there is no index.

    elements: the types of those that are stored plainly and whose file is there.
    """

    names: frozenset[str]
    elements: Mapping[str, ElementType]


def read_origin(folder: Path) -> Origin:
    """What the index and the files' headers say; no tensor is read."""
    index = folder / INDEX
    if index.is_file():
        weight_map = _weight_map(index)
        files = sorted({name for name in weight_map.values() if (folder / name).is_file()})
    elif (folder / SINGLE).is_file():
        files = [SINGLE]
        weight_map = dict.fromkeys(read_header(folder / SINGLE), SINGLE)
    else:
        return Origin(frozenset(), {})
    elements, names = {}, set(weight_map)
    for file in files:
        for name, entry in read_header(folder / file).items():
            element = BY_CODE.get(entry["dtype"])
            if element is not None and not _is_quantised(name, element, names):
                elements[name] = element
    return Origin(frozenset(filter(None, (_plain(name, names) for name in names))), elements)


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        if not all(isinstance(file, str) for file in weight_map.values()):
            raise TypeError("a file's name that is no text")
        return weight_map
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise PeriodicError(
            f"{index} is no index of safetensors files.",
            feature=SLUG,
            found=f"{type(error).__name__}: {error}",
            remedy="Give --config a folder with a whole index, or with no weights at all.",
        ) from error


def read_header(path: Path) -> dict[str, dict]:
    """The entries of a safetensors file by name, without its `__metadata__`."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            text = file.read(size) if size <= _LARGEST_HEADER_BYTES else b""
        entries = dict(json.loads(text))
        entries.pop("__metadata__", None)
        if not all(isinstance(entry["dtype"], str) for entry in entries.values()):
            raise TypeError("an element type that is no name")
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise PeriodicError(
            f"{path} is no safetensors file.",
            feature=SLUG,
            found=f"{type(error).__name__}: {error}",
            remedy="Give --config a folder with whole files, or with no weights at all.",
        ) from error
    return entries


def _is_quantised(name: str, element: ElementType, names: set[str]) -> bool:
    """Whether its values mean weights only with scales; whole numbers that have some do."""
    if element.is_float:
        return element.itemsize == 1
    return not names.isdisjoint({f"{name}_scale", f"{name}_scale_inv", f"{name}_scales"})


def _plain(name: str, names: set[str]) -> str | None:
    """The name of the tensor of which `name` is the stored form; None for companions."""
    base, _, last = name.rpartition(".")
    found = _COMPANION.search(last)
    if found and found.end() == len(last):
        stem = f"{base}.{last[: found.start()]}"
        if names & {stem, f"{stem}_packed", f"{stem}_blocks"}:
            return None
    packed = _PACKED.search(last)
    if packed and packed.end() == len(last):
        return f"{base}.{last[: packed.start()]}"
    return name
