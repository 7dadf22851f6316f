"""A control group per sandbox, under cgroup v1 and v2 alike: limits, counts, and an end.

The node makes the group and the sandbox's processes are born in it: nothing depends on what a
version of runsc understands of control groups.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.limits import Limits

PERIOD_MICROSECONDS = 100_000
CONTROLLERS = ("memory", "pids", "cpu", "cpuset")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a group's counters say now. most_memory_bytes: None where the kernel does not count."""

    memory_bytes: int
    most_memory_bytes: int | None
    num_processes: int
    cpu_seconds: float
    num_oom_kills: int
    num_refused_forks: int
    num_throttled: int


class Cgroup(Protocol):
    """One group, of any version."""

    def apply(self, limits: Limits) -> None:
        """Write the limits of a sandbox."""

    def favour(self, is_used: bool) -> None:
        """Give a sandbox that is used ten times the CPU of one that only warms up, when short."""

    def entrances(self) -> list[Path]:
        """Files into which a process writes 0 to enter the group."""

    def usage(self) -> Usage:
        """Read the counters."""

    def pids(self) -> list[int]:
        """Processes in the group, zombies left out."""

    def remove(self) -> None:
        """Remove the group; one that is not there is no error. Raises OSError while in use."""


class Cgroups(Protocol):
    """All groups of an agent: a parent group, and one below it per sandbox."""

    version: int
    parent: str

    def prepare(self, cpus: str, memory_bytes: int | None) -> None:
        """Make the parent, with the agent's CPUs (a list as the kernel writes it, or empty)."""

    def make(self, name: str, limits: Limits) -> Cgroup:
        """Make a group below the parent and limit it."""

    def existing(self) -> dict[str, Cgroup]:
        """Name to group, of all below the parent."""

    def remove(self) -> None:
        """Remove the parent; one that is not there is no error."""


def find(parent: str, mount_table: str | None = None) -> Cgroups:
    """The groups under `parent`, such as `pbox`, on the version that this machine has.

    mount_table: text of /proc/self/mountinfo. Raises PeriodicError where a controller is missing.
    """
    from miles_periodic.plugins.pbox.node.cgroups_v1 import CgroupsV1
    from miles_periodic.plugins.pbox.node.cgroups_v2 import CgroupsV2

    table = mount_table if mount_table is not None else Path("/proc/self/mountinfo").read_text()
    unified, places = _mounted(table)
    if unified is not None and set(CONTROLLERS) <= set(_words(unified / "cgroup.controllers")):
        return CgroupsV2(unified, parent)
    wanted = (*CONTROLLERS, "cpuacct")
    if set(wanted) <= set(places):
        return CgroupsV1({name: places[name] for name in wanted}, parent)
    missing = ", ".join(sorted(set(wanted) - set(places)))
    raise PeriodicError(
        "This machine has no control groups that bound a sandbox.",
        expected="the controllers memory, pids, cpu and cpuset, under cgroup v1 or v2",
        found=f"missing: {missing}",
        remedy="Mount /sys/fs/cgroup writable; in a container, start it with its own cgroup.",
    )


def _mounted(table: str) -> tuple[Path | None, dict[str, Path]]:
    """Mount point of cgroup v2, and of each controller of v1."""
    unified, places = None, {}
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        where = Path(before.split(" ")[4])
        if kind == "cgroup2":
            unified = where
        elif kind == "cgroup":
            places |= {name: where for name in options.split(",")}
    return unified, places


def _words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def count(file: Path, key: str = "") -> int:
    """A number of a file: the whole of it, or the line of `key`; 0 where there is none."""
    for line in file.read_text().splitlines():
        words = line.split()
        if words[:1] == [key] or not key:
            return int(words[-1])
    return 0


def end_processes(cgroup: Cgroup, *, patience_seconds: float, seconds: float) -> bool:
    """Kill all in a group, again until there are none; whether it came to that in `seconds`.

    Whoever was started from outside the group (runsc) is left to notice and to reap its children
    for `patience_seconds`. Those whose parent went before them are reaped here, where they are
    this process's to reap.
    """
    started, orphans = time.monotonic(), set()
    while pids := set(cgroup.pids()):
        waited = time.monotonic() - started
        if waited > seconds:
            return False
        for pid in pids:
            is_inner = parent_of(pid) in pids
            orphans |= {pid} if is_inner else set()
            if is_inner or waited > patience_seconds or pid in orphans:
                kill(pid)
        time.sleep(0.001)
    for pid in orphans:
        reap(pid)
    return True


def parent_of(pid: int) -> int:
    """The parent of a process; 0 of one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    """SIGKILL, to a process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def reap(pid: int) -> None:
    """Take the status of a child that ended; of somebody else's, nothing."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
