"""Reaps what a sandbox's processes leave: tracers' children whose parent was killed before them.

An agent adopts them, since in a container its machine's first process may never reap. `sh` waits
for what it started by itself, and a status that is taken from it would be lost to it: so a child is
reaped here only when it has been a zombie for a whole round, longer than `sh` ever leaves one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from miles_periodic.plugins.pbox.node.cgroups import reap

#: More than the second in which `sh` looks for ended children of its own.
ROUND_SECONDS = 2.0


async def reap_orphans() -> None:
    """Reap them, round by round, until cancelled."""
    before: set[int] = set()
    while True:
        now = zombie_children()
        for pid in now & before:
            reap(pid)
        before = now
        await asyncio.sleep(ROUND_SECONDS)


def zombie_children(process: int | str = "self") -> set[int]:
    """Children of a process that ended and were not reaped."""
    children: set[int] = set()
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children |= {int(word) for word in file.read_text().split()}
        except OSError:
            continue  # a thread that ended
    return {pid for pid in children if _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"
