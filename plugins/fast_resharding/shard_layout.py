"""Shards laid out before a tensor is read: headers, the index, and every tensor's byte range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from miles_periodic.plugins.fast_resharding.origin import INDEX, SINGLE
from miles_periodic.plugins.fast_resharding.planner import Target

_ALIGNMENT = 8


@dataclass(frozen=True)
class Shard:
    """A safetensors file. header: its first bytes. targets, starts: tensors, each one's byte."""

    name: str
    header: bytes
    targets: tuple[Target, ...]
    starts: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.starts[-1] + self.targets[-1].num_bytes


@dataclass(frozen=True)
class Layout:
    shards: tuple[Shard, ...]

    @property
    def tensor_bytes(self) -> int:
        return sum(target.num_bytes for shard in self.shards for target in shard.targets)

    @property
    def num_bytes(self) -> int:
        return sum(shard.num_bytes for shard in self.shards)

    def index(self) -> tuple[str, bytes] | None:
        """The index's name and text; None for a single file, which needs none."""
        if len(self.shards) == 1:
            return None
        weight_map = {t.name: shard.name for shard in self.shards for t in shard.targets}
        index = {"metadata": {"total_size": self.tensor_bytes}, "weight_map": weight_map}
        return INDEX, (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def lay_out(targets: Sequence[Target], max_shard_bytes: int) -> Layout:
    """Shards of at most `max_shard_bytes` of tensors, in the order of `targets`.

    A larger tensor has a shard of its own. In a shard, larger element types come first: a loader
    that maps the file finds every tensor aligned.
    """
    groups: list[list[Target]] = [[]]
    filled = 0
    for target in targets:
        if groups[-1] and filled + target.num_bytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(target)
        filled += target.num_bytes
    count = len(groups)
    return Layout(tuple(_shard(group, n, count) for n, group in enumerate(groups, 1) if group))


def _shard(targets: Sequence[Target], number: int, count: int) -> Shard:
    ordered = tuple(sorted(targets, key=lambda target: -target.element.itemsize))
    entries: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    starts, at = [], 0
    for target in ordered:
        end = at + target.num_bytes
        entries[target.name] = {
            "dtype": target.element.code,
            "shape": list(target.shape),
            "data_offsets": [at, end],
        }
        starts.append(at)
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    name = SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
    return Shard(name, header, ordered, tuple(len(header) + start for start in starts))
