"""Shards laid out before a tensor is read: headers, the index, and every tensor's byte range."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from miles_periodic.plugins.fast_resharding.element_types import ElementType
from miles_periodic.plugins.fast_resharding.origin import INDEX, SINGLE
from miles_periodic.plugins.fast_resharding.quantising import SCALE
from miles_periodic.plugins.fast_resharding.targets import Target

_ALIGNMENT = 8


class _Entry(NamedTuple):
    """A tensor of a file: a target, or the scales of one."""

    name: str
    element: ElementType
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.element.itemsize


@dataclass(frozen=True)
class Shard:
    """A safetensors file.

    header: its first bytes. starts: the first byte of every tensor by name, scales included.
    """

    name: str
    header: bytes
    targets: tuple[Target, ...]
    starts: dict[str, int]
    num_bytes: int


@dataclass(frozen=True)
class Layout:
    shards: tuple[Shard, ...]

    @property
    def tensor_bytes(self) -> int:
        return sum(shard.num_bytes - len(shard.header) for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def num_tensors(self) -> int:
        return sum(len(shard.starts) for shard in self.shards)

    def index(self) -> tuple[str, bytes] | None:
        """The index's name and text; None for a single file, which needs none."""
        if len(self.shards) == 1:
            return None
        weight_map = {name: shard.name for shard in self.shards for name in shard.starts}
        index = {"metadata": {"total_size": self.tensor_bytes}, "weight_map": weight_map}
        return INDEX, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def lay_out(targets: Sequence[Target], max_shard_bytes: int) -> Layout:
    """Shards of at most `max_shard_bytes` of tensors, in the order of `targets`.

    A larger tensor has a shard of its own; scales lie in the shard of what they belong to. In a
    shard, larger element types come first: a loader that maps the file finds every tensor aligned.
    """
    groups: list[list[Target]] = [[]]
    filled = 0
    for target in targets:
        num_bytes = sum(entry.num_bytes for entry in _entries(target))
        if groups[-1] and filled + num_bytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(target)
        filled += num_bytes
    count = len(groups)
    return Layout(tuple(_shard(group, n, count) for n, group in enumerate(groups, 1) if group))


def _entries(target: Target) -> Iterator[_Entry]:
    yield _Entry(target.name, target.element, target.shape)
    if target.scales:
        yield _Entry(target.scales.name, SCALE, target.scales.shape)


def _shard(targets: Sequence[Target], number: int, count: int) -> Shard:
    tensors = [entry for target in targets for entry in _entries(target)]
    entries: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in sorted(tensors, key=lambda entry: -entry.element.itemsize):
        end = at + entry.num_bytes
        entries[entry.name] = {
            "dtype": entry.element.code,
            "shape": list(entry.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    starts = {n: len(header) + entries[n]["data_offsets"][0] for n in entries if n[:2] != "__"}
    ordered = tuple(sorted(targets, key=lambda target: starts[target.name]))
    name = SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
    return Shard(name, header, ordered, starts, len(header) + at)
