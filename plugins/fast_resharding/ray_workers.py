"""Tasks over Ray: actors on the nodes that hold the files, each with one task at a time.

Where every node sees all files, actors are spread and any of them runs any task. A worker that dies
is replaced and its task is given to another one; a task writes the same bytes into the same places,
however often it is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.node_files import ANYWHERE, NodeFiles
from miles_periodic.plugins.fast_resharding.ray_nodes import (
    FileServer,
    RayNodes,
    ServedFiles,
    needed_elsewhere,
)
from miles_periodic.plugins.fast_resharding.settings import CONTENT, SLUG
from miles_periodic.plugins.fast_resharding.tasks import Task
from miles_periodic.plugins.fast_resharding.worker import Worker

#: Workers that may die over one task before the task is taken to be the cause.
MOST_DEATHS = 3


class RayWorkers:
    """Use it in a `with` block. address: of a cluster; None starts Ray on this machine."""

    def __init__(self, source: Path, num_workers: int, address: str | None = None) -> None:
        self.num_workers = num_workers
        self._source = source
        self._target = ""
        self._address = address
        self._ray = _import_ray()
        self._nodes: RayNodes
        self._places: list[str | None] = []
        self._elsewhere: dict[str | None, Any] = {}
        self._actors: list[Any] = []
        self._servers: dict[str, Any] = {}
        self._started = False

    def __enter__(self) -> RayWorkers:
        if self._ray.is_initialized():
            self._check_address()
        else:
            self._start()
            self._check_size()
        self._nodes = RayNodes(self._ray)
        return self

    def __exit__(self, *_exception: object) -> None:
        for actor in (*self._actors, *self._servers.values()):
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()

    def find_files(self, names: Sequence[str]) -> NodeFiles:
        """What each node sees of the source's files."""
        return self._nodes.find_files(self._source, names)

    def open(self, staging: Path, tasks: Sequence[Task], files: NodeFiles) -> None:
        """As `LocalWorkers.open`; the workers' nodes have to see `staging`."""
        self._places = self._nodes.places(tasks, self.num_workers)
        used = {place for place in self._places if place} or files.nodes
        self._nodes.check_target(staging, used)
        self._target = str(staging / CONTENT)
        for node, names in needed_elsewhere(tasks, files, self._places).items():
            servers = {name: self._server(min(files.holders[name])) for name in names}
            self._elsewhere[node] = ServedFiles(servers)
        self._actors = [self._actor(place) for place in self._places]

    def each(
        self, method: str, calls: Sequence[tuple], homes: Sequence[frozenset[str]]
    ) -> Iterator[tuple[int, Any]]:
        """As `LocalWorkers.each`; a call goes to one of its homes, and one whose worker died is
        made again by another one.
        """
        upcoming = _Upcoming(homes)
        deaths = [0] * len(calls)
        busy: dict[Any, tuple[int, int]] = {}
        idle = list(range(len(self._actors)))
        while upcoming or busy:
            for actor in list(idle):
                number = upcoming.take(self._places[actor])
                if number is not None:
                    idle.remove(actor)
                    call = getattr(self._actors[actor], method).remote(*calls[number])
                    busy[call] = (number, actor)
            (ready, *_), _ = self._ray.wait(list(busy), num_returns=1)
            number, actor = busy.pop(ready)
            idle.append(actor)
            try:
                result = self._ray.get(ready)
            except (
                self._ray.exceptions.RayActorError,
                self._ray.exceptions.ActorUnschedulableError,
            ) as error:
                deaths[number] += 1
                self._replace(actor, deaths[number], error)
                upcoming.put_back(number)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            yield number, result

    def forget(self) -> None:
        """Have what was written read from the disk from now on, on every node."""
        self._ray.get([actor.forget.remote() for actor in self._actors])

    def _start(self) -> None:
        try:
            self._ray.init(
                # Without a word, Ray would take the cluster of RAY_ADDRESS.
                address=self._address or "local",
                num_cpus=None if self._address else self.num_workers,
                include_dashboard=False if not self._address else None,
                log_to_driver=False,
                logging_level="error",
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise PeriodicError(
                f"Ray cannot be reached: {str(error).splitlines()[0].rstrip('.')}.",
                feature=SLUG,
                target=self._address or "a Ray of its own on this machine",
                remedy="Give a running cluster with --address, or convert without Ray with "
                "--workers 0.",
            ) from error
        self._started = True

    def _check_address(self) -> None:
        """A process is in one cluster at a time."""
        own = self._ray.get_runtime_context().gcs_address
        if self._address not in (None, "auto", own):
            raise PeriodicError(
                "This process is in another Ray cluster already.",
                feature=SLUG,
                expected=self._address,
                found=own,
                remedy="Leave the address out to convert on that one, or shut Ray down first.",
            )

    def _check_size(self) -> None:
        """Actors for which a cluster has no CPU would be waited for for ever."""
        num_cpus = int(self._ray.cluster_resources().get("CPU", 0))
        if num_cpus < self.num_workers:
            self.__exit__()
            raise PeriodicError(
                f"The Ray cluster has too few CPUs for {self.num_workers} workers.",
                feature=SLUG,
                expected=f"{self.num_workers} CPUs",
                found=f"{num_cpus}",
                remedy=f"Convert with --workers {num_cpus}, which is what it has.",
            )

    def _actor(self, node: str | None) -> Any:
        # In somebody's run all CPUs may be taken by what waits for this conversion, and a node
        # that alone holds files may have fewer CPUs than its share of the workers.
        num_cpus = 1 if self._started and node is None else 0
        where = self._nodes.on(node)
        remote = self._ray.remote(num_cpus=num_cpus, scheduling_strategy=where)(Worker)
        return remote.remote(str(self._source), self._target, self._elsewhere.get(node, ()))

    def _server(self, node: str) -> Any:
        if node not in self._servers:
            where = self._nodes.on(node)
            remote = self._ray.remote(num_cpus=0, scheduling_strategy=where)(FileServer)
            self._servers[node] = remote.remote(str(self._source))
        return self._servers[node]

    def _replace(self, actor: int, num_deaths: int, error: Exception) -> None:
        if num_deaths >= MOST_DEATHS:
            raise PeriodicError(
                f"{num_deaths} workers have died over the same task.",
                feature=SLUG,
                found=str(error).splitlines()[0],
                remedy="Look for what ends them, such as too little memory; then go on with "
                "--resume.",
            ) from error
        self._actors[actor] = self._actor(self._places[actor])


class _Upcoming:
    """Numbers of calls that wait for a worker, in order, by their homes."""

    def __init__(self, homes: Sequence[frozenset[str]]) -> None:
        self._homes = homes
        self._waiting: dict[frozenset[str], deque[int]] = {}
        for number, nodes in enumerate(homes):
            self._waiting.setdefault(nodes, deque()).append(number)

    def __bool__(self) -> bool:
        return any(self._waiting.values())

    def take(self, node: str | None) -> int | None:
        """The next call for a worker on `node`, first of those that fewest nodes can take."""
        fitting = [h for h, left in self._waiting.items() if left and (node in h or h == ANYWHERE)]
        fitting.sort(key=lambda homes: (homes == ANYWHERE, len(homes)))
        return self._waiting[fitting[0]].popleft() if fitting else None

    def put_back(self, number: int) -> None:
        self._waiting[self._homes[number]].appendleft(number)


def _cause(error: Any) -> Exception:
    """The error that a worker raised, or what it asked, without Ray's frames around it."""
    cause = error
    while isinstance(getattr(cause, "cause", None), Exception):
        cause = cause.cause
    return cause if isinstance(cause, PeriodicError) else error


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise PeriodicError(
            "Ray is not installed.",
            feature=SLUG,
            remedy="Install miles-periodic[reshard], or convert in one process with --workers 0.",
        ) from error
    return ray
