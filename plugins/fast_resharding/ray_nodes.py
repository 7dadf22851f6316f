"""Nodes of a Ray cluster: what each sees of a checkpoint and of a target, and who works where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.node_files import (
    ANYWHERE,
    FileState,
    NodeFiles,
    agreed,
    look,
)
from miles_periodic.plugins.fast_resharding.settings import LOCK, SLUG
from miles_periodic.plugins.fast_resharding.source_reader import SourceReader
from miles_periodic.plugins.fast_resharding.tasks import Task, source_bytes

#: For a node to say what it sees, its first Python process included.
_PROBE_SECONDS = 120


class RayNodes:
    """The nodes that can run something, by their identity in Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._found = self._alive()

    def find_files(self, source: Path, names: Sequence[str]) -> NodeFiles:
        """What each node sees of the source's files; nodes that have died since say nothing."""
        self._found = self._alive()
        seen: Mapping[str, Mapping[str, FileState]] = self._on_each(look, str(source), names)
        return agreed(source, seen)

    def check_target(self, staging: Path, nodes: Iterable[str]) -> None:
        """Refuse nodes that are to write and do not see the folder in which the target is made."""
        lock = staging / LOCK
        expected = text_of(str(lock))
        seen = self._on_each(text_of, str(lock))
        blind = sorted(self.name(node) for node in nodes if seen[node] != expected)
        if blind:
            raise PeriodicError(
                f"{staging.parent} is not the same folder on every node that holds files of the "
                "checkpoint.",
                feature=SLUG,
                target=str(staging),
                expected="the folder in which the target is made",
                found=f"another one, or none, on {', '.join(blind)}",
                remedy="Choose a target on a file system that all of them have.",
            )

    def name(self, node: str) -> str:
        """The node's name and address, for people."""
        found = self._found[node]
        return f"{found['NodeManagerHostname']} ({found['NodeManagerAddress']})"

    def on(self, node: str | None) -> Any:
        """How Ray is told where an actor or a task belongs; None spreads them."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=False)

    def places(self, tasks: Sequence[Task], num_workers: int) -> list[str | None]:
        """A node for each worker, by the bytes that its node holds; None where all hold all."""
        if all(task.homes == ANYWHERE for task in tasks):
            return [None] * num_workers
        shares = self._shares(tasks)
        chosen: list[str] = []
        for homes in sorted({task.homes for task in tasks} - {ANYWHERE}, key=len):
            if not homes & set(chosen):
                chosen.append(max(sorted(homes), key=lambda node: shares[node]))
        if len(chosen) > num_workers:
            raise PeriodicError(
                f"The checkpoint's files lie on {len(chosen)} nodes, each of which needs a worker.",
                feature=SLUG,
                found=f"--workers {num_workers}",
                remedy=f"Convert with --workers {len(chosen)} or more.",
            )
        counts = Counter(chosen)
        while len(chosen) < num_workers:
            node = max(sorted(shares), key=lambda node: shares[node] / (counts[node] + 1))
            chosen.append(node)
            counts[node] += 1
        return list(chosen)

    def _alive(self) -> dict[str, Mapping[str, Any]]:
        return {
            node["NodeID"]: node
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        }

    def _shares(self, tasks: Sequence[Task]) -> dict[str, float]:
        shares: dict[str, float] = {}
        for task in tasks:
            homes = task.homes or self._found.keys()
            for node in homes:
                shares[node] = shares.get(node, 0) + task.num_bytes / len(homes)
        return shares

    def _on_each(self, function: Any, *arguments: Any) -> dict[str, Any]:
        """What `function` gives on each node."""
        remote = self._ray.remote(num_cpus=0, max_retries=0)(function)
        calls = {
            node: remote.options(scheduling_strategy=self.on(node)).remote(*arguments)
            for node in self._found
        }
        try:
            results = self._ray.get([*calls.values()], timeout=_PROBE_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise PeriodicError(
                "A node of the Ray cluster does not say what files it sees.",
                feature=SLUG,
                found=str(error).splitlines()[0],
                remedy="Look at the cluster's nodes with `ray status`, then go on with --resume.",
            ) from error
        return dict(zip(calls, results, strict=True))


class FileServer:
    """A node's files, read for workers of nodes that do not see them."""

    def __init__(self, source: str) -> None:
        self._reader = SourceReader(Path(source))

    def read(self, name: str, position: int, num_bytes: int) -> bytes:
        """Exactly that many bytes."""
        return self._reader.read_bytes(name, position, num_bytes)


class ServedFiles:
    """The files that a node does not see, by the actor that reads them."""

    def __init__(self, servers: Mapping[str, Any]) -> None:
        self._servers = servers

    def __contains__(self, name: str) -> bool:
        return name in self._servers

    def read(self, name: str, position: int, num_bytes: int) -> bytes:
        """Exactly that many bytes."""
        import ray

        return ray.get(self._servers[name].read.remote(name, position, num_bytes))


def needed_elsewhere(
    tasks: Iterable[Task], files: NodeFiles, places: Collection[str | None]
) -> dict[str, set[str]]:
    """By node among `places`, the files that its tasks read and that it does not see."""
    needed: dict[str, set[str]] = {}
    for task in tasks:
        read = {name for unit in task.units for name in source_bytes(unit)}
        for node in task.homes.intersection(places):
            needed.setdefault(node, set()).update(n for n in read if node not in files.holders[n])
    return needed


def text_of(path: str) -> str | None:
    """A file's text on this node; None where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return None
