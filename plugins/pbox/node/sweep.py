"""Removes what an agent that was killed left behind: processes, groups, mounts, files, notes.

It may run at any time when no agent of the same folder runs, any number of times.
"""

from __future__ import annotations

import asyncio

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
