"""Control groups of version 1: a folder per controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from miles_periodic.plugins.pbox.limits import Limits
from miles_periodic.plugins.pbox.node.cgroups import PERIOD_MICROSECONDS, Usage, count


@dataclass(frozen=True, slots=True)
class CgroupV1:
    """folders: controller to the group's folder."""

    folders: dict[str, Path]

    def apply(self, limits: Limits) -> None:
        memory, pids, cpu = (self.folders[name] for name in ("memory", "pids", "cpu"))
        (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
        with_swap = memory / "memory.memsw.limit_in_bytes"
        if with_swap.exists():
            with_swap.write_text(str(limits.memory_bytes))
        (pids / "pids.max").write_text(str(limits.num_processes))
        (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        quota = int(limits.num_cpus * PERIOD_MICROSECONDS)
        (cpu / "cpu.cfs_quota_us").write_text(str(quota))

    def favour(self, is_used: bool) -> None:
        (self.folders["cpu"] / "cpu.shares").write_text("1024" if is_used else "102")

    def entrances(self) -> list[Path]:
        return [folder / "cgroup.procs" for folder in dict.fromkeys(self.folders.values())]

    def usage(self) -> Usage:
        memory, pids = self.folders["memory"], self.folders["pids"]
        return Usage(
            memory_bytes=count(memory / "memory.usage_in_bytes"),
            most_memory_bytes=count(memory / "memory.max_usage_in_bytes"),
            num_processes=count(pids / "pids.current"),
            cpu_seconds=count(self.folders["cpuacct"] / "cpuacct.usage") / 1e9,
            num_oom_kills=count(memory / "memory.oom_control", "oom_kill"),
            num_refused_forks=count(pids / "pids.events", "max"),
            num_throttled=count(self.folders["cpu"] / "cpu.stat", "nr_throttled"),
        )

    def pids(self) -> list[int]:
        try:
            return [int(word) for word in self.entrances()[0].read_text().split()]
        except OSError:  # the group is gone, or just going
            return []

    def remove(self) -> None:
        for folder in self.folders.values():
            _remove(folder)


@dataclass(frozen=True, slots=True)
class CgroupsV1:
    """places: controller to its mount point. parent: path below each of them."""

    places: dict[str, Path]
    parent: str
    version: int = 1

    def prepare(self, cpus: str, memory_bytes: int | None) -> None:
        for folder in self._folders(self.parent).values():
            folder.mkdir(parents=True, exist_ok=True)
        cpuset = self.places["cpuset"]
        for part in Path(self.parent).parts:  # a new group has no CPU: each level is given some
            above, cpuset = cpuset, cpuset / part
            for name in ("cpuset.cpus", "cpuset.mems"):
                if not (cpuset / name).read_text().strip():
                    (cpuset / name).write_text((above / name).read_text())
        if cpus:
            (cpuset / "cpuset.cpus").write_text(cpus)
        if memory_bytes is not None:
            limit = self.places["memory"] / self.parent / "memory.limit_in_bytes"
            limit.write_text(str(memory_bytes))

    def make(self, name: str, limits: Limits) -> CgroupV1:
        group = self._group(name)
        for folder in dict.fromkeys(group.folders.values()):
            folder.mkdir()
        above = self.places["cpuset"] / self.parent
        for file in ("cpuset.cpus", "cpuset.mems"):
            (group.folders["cpuset"] / file).write_text((above / file).read_text())
        group.apply(limits)
        return group

    def existing(self) -> dict[str, CgroupV1]:
        found: dict[str, CgroupV1] = {}
        for folder in self._folders(self.parent).values():
            if folder.is_dir():
                names = [path.name for path in folder.iterdir() if path.is_dir()]
                found |= {name: self._group(name) for name in names}
        return found

    def remove(self) -> None:
        for folder in self._folders(self.parent).values():
            _remove(folder)

    def _group(self, name: str) -> CgroupV1:
        return CgroupV1(self._folders(f"{self.parent}/{name}"))

    def _folders(self, path: str) -> dict[str, Path]:
        return {name: place / path for name, place in self.places.items()}


def _remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
