"""Control groups of version 2: one folder for all controllers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.cgroups import (
    CONTROLLERS,
    PERIOD_MICROSECONDS,
    Usage,
    count,
)


@dataclass(frozen=True, slots=True)
class CgroupV2:
    """folder: the group."""

    folder: Path

    def apply(self, limits: Limits) -> None:
        (self.folder / "memory.max").write_text(str(limits.memory_bytes))
        if (self.folder / "memory.swap.max").exists():
            (self.folder / "memory.swap.max").write_text("0")
        (self.folder / "memory.oom.group").write_text("1")
        (self.folder / "pids.max").write_text(str(limits.num_processes))
        quota = int(limits.num_cpus * PERIOD_MICROSECONDS)
        (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")

    def favour(self, is_used: bool) -> None:
        (self.folder / "cpu.weight").write_text("100" if is_used else "10")

    def entrances(self) -> list[Path]:
        return [self.folder / "cgroup.procs"]

    def usage(self) -> Usage:
        peak = self.folder / "memory.peak"  # since Linux 5.19
        return Usage(
            memory_bytes=count(self.folder / "memory.current"),
            most_memory_bytes=count(peak) if peak.exists() else None,
            num_processes=count(self.folder / "pids.current"),
            cpu_seconds=count(self.folder / "cpu.stat", "usage_usec") / 1e6,
            num_oom_kills=count(self.folder / "memory.events", "oom_kill"),
            num_refused_forks=count(self.folder / "pids.events", "max"),
            num_throttled=count(self.folder / "cpu.stat", "nr_throttled"),
        )

    def pids(self) -> list[int]:
        try:
            return [int(word) for word in (self.folder / "cgroup.procs").read_text().split()]
        except OSError:  # the group is gone, or just going
            return []

    def remove(self) -> None:
        _remove(self.folder)


@dataclass(frozen=True, slots=True)
class CgroupsV2:
    """place: where cgroup v2 is mounted. parent: path below it; no process may be in it itself."""

    place: Path
    parent: str
    version: int = 2

    def prepare(self, cpus: str, memory_bytes: int | None) -> None:
        folder = self.place
        for part in Path(self.parent).parts:
            _hand_down(folder)
            folder = folder / part
            folder.mkdir(exist_ok=True)
        _hand_down(folder)
        if cpus:
            (folder / "cpuset.cpus").write_text(cpus)
        if memory_bytes is not None:
            (folder / "memory.max").write_text(str(memory_bytes))

    def make(self, name: str, limits: Limits) -> CgroupV2:
        group = CgroupV2(self.place / self.parent / name)
        group.folder.mkdir()
        group.apply(limits)
        return group

    def existing(self) -> dict[str, CgroupV2]:
        folder = self.place / self.parent
        if not folder.is_dir():
            return {}
        return {path.name: CgroupV2(path) for path in folder.iterdir() if path.is_dir()}

    def remove(self) -> None:
        _remove(self.place / self.parent)


def _hand_down(folder: Path) -> None:
    """Let the groups below have the controllers."""
    wanted = " ".join(f"+{name}" for name in CONTROLLERS)
    (folder / "cgroup.subtree_control").write_text(wanted)


def _remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
