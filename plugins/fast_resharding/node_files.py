"""Which node holds which of a checkpoint's files: one, several or all see each of them.

A node is named by its identity; a conversion in one process has one node, named by an empty text.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.settings import SLUG

ANYWHERE: frozenset[str] = frozenset()
"""The homes of what every node can read."""


class FileState(NamedTuple):
    """What tells one file from another by its name. changed_ns: its time, since the epoch."""

    num_bytes: int
    changed_ns: int


@dataclass(frozen=True)
class NodeFiles:
    """states: of every file that a node sees. holders: the nodes that see it. nodes: all."""

    states: Mapping[str, FileState]
    holders: Mapping[str, frozenset[str]]
    nodes: frozenset[str]

    @cached_property
    def all_everywhere(self) -> bool:
        return all(holders == self.nodes for holders in self.holders.values())

    def homes(self, bytes_of: Mapping[str, int]) -> frozenset[str]:
        """The nodes that hold the most of these bytes, by file; `ANYWHERE` if all hold all."""
        held: Counter[str] = Counter()
        for file, num_bytes in bytes_of.items():
            held.update(dict.fromkeys(self.holders[file], num_bytes))
        most = max(held.values(), default=0)
        homes = frozenset(node for node, num_bytes in held.items() if num_bytes == most)
        whole = most == sum(bytes_of.values())
        return ANYWHERE if whole and homes == self.nodes else homes


def look(folder: str, names: Iterable[str]) -> dict[str, FileState]:
    """The files of `names` that this node sees."""
    found = {}
    for name in names:
        try:
            state = os.stat(Path(folder) / name)
        except OSError:
            continue
        if S_ISREG(state.st_mode):
            found[name] = FileState(state.st_size, state.st_mtime_ns)
    return found


def agreed(folder: Path, seen: Mapping[str, Mapping[str, FileState]]) -> NodeFiles:
    """What all nodes see together, if those that see a file see the same one."""
    states: dict[str, FileState] = {}
    holders: dict[str, frozenset[str]] = {}
    for node, files in seen.items():
        for name, state in files.items():
            if states.setdefault(name, FileState(*state)) != tuple(state):
                raise _different(folder, name, states[name], FileState(*state))
            holders[name] = holders.get(name, ANYWHERE) | {node}
    return NodeFiles(states, holders, frozenset(seen))


def check_lengths(folder: Path, ends: Mapping[str, int], files: NodeFiles) -> None:
    """Refuse files that no node sees, or that end before what the metadata say is in them."""
    for name, end in sorted(ends.items()):
        if name not in files.states:
            raise PeriodicError(
                f"The checkpoint's file {name} is missing.",
                feature=SLUG,
                tree=str(folder),
                remedy="Copy every .distcp file of the checkpoint into its folder.",
            )
        if files.states[name].num_bytes < end:
            raise PeriodicError(
                f"The checkpoint's file {name} is cut off.",
                feature=SLUG,
                tree=str(folder),
                expected=f"{end:,} bytes or more",
                found=f"{files.states[name].num_bytes:,} bytes",
                remedy="Copy the file again from where the checkpoint was written.",
            )


def check_unchanged(folder: Path, before: NodeFiles, after: NodeFiles) -> None:
    """Refuse files that changed while they were read: parts of two checkpoints fit together."""
    for name, state in before.states.items():
        if after.states.get(name) != state:
            raise PeriodicError(
                f"The checkpoint's file {name} has changed during the conversion.",
                feature=SLUG,
                tree=str(folder),
                expected=_words(state),
                found=_words(after.states[name]) if name in after.states else "no file",
                remedy="Convert a checkpoint that nobody writes any more; remove what this run has "
                "left beside the target first.",
            )


def _different(folder: Path, name: str, one: FileState, other: FileState) -> PeriodicError:
    return PeriodicError(
        f"Nodes have different files by the name {name}.",
        feature=SLUG,
        tree=str(folder),
        expected=_words(one),
        found=_words(other),
        remedy="Remove the one that is not of this checkpoint, or copy it with its time kept.",
    )


def _words(state: FileState) -> str:
    return f"{state.num_bytes:,} bytes, changed at {state.changed_ns / 1e9:.9f}"
