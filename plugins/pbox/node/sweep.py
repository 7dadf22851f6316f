"""Removes what an agent that was killed left behind: processes, groups, mounts, files, notes.

It may run at any time when no agent of the same folder runs, any number of times.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from miles_periodic.plugins.pbox.node import place
from miles_periodic.plugins.pbox.node.cgroups import end_processes
from miles_periodic.plugins.pbox.node.sandbox import Node, remove_traces

PATIENCE_SECONDS = 0.3
SECONDS = 10.0


def sweep(node: Node) -> list[str]:
    """End and remove every sandbox below the agent's group and folder; their names."""
    groups = node.cgroups.existing()
    homes = {path.name for path in node.homes.iterdir()} if node.homes.is_dir() else set()
    for group in groups.values():
        end_processes(group, patience_seconds=PATIENCE_SECONDS, seconds=SECONDS)
    names = sorted(homes | set(groups))
    for name in names:
        asyncio.run(remove_traces(node, name, groups.get(name)))
    return names


def sweep_abandoned(folder: Path, program: str, platform: str) -> list[str]:
    """Sweep the places of agents below `folder` that were killed with all that watched them.

    A place is `folder/NAME/state` with the group `pbox-NAME`. Returns the names of those swept; one
    that an agent still has is left alone.
    """
    swept = []
    for state in sorted(folder.glob("*/state")):
        name = state.parent.name
        lock = place.take_to_sweep(state)
        if lock is None:
            continue  # its agent lives, or somebody else sweeps
        try:
            group = place.group_of(state.parent)
            node = place.place_of(state, program, platform, group)
            sweep(node)
            place.remove_files(state, group)
            place.remove_place(state, node)
            swept.append(name)
        finally:
            os.close(lock)
    return swept
