"""Tasks over Ray: actors spread over the nodes, each with one task at a time.

A worker that dies is replaced and its task is given to another one; a task writes the same bytes
into the same places, however often it is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.settings import SLUG
from miles_periodic.plugins.fast_resharding.worker import Worker

#: Workers that may die over one task before the task is taken to be the cause.
MOST_DEATHS = 3


class RayWorkers:
    """Use it in a `with` block. address: of a cluster; None starts Ray on this machine."""

    def __init__(
        self, source: Path, target: Path, num_workers: int, address: str | None = None
    ) -> None:
        self.num_workers = num_workers
        self._arguments = (str(source), str(target))
        self._address = address
        self._ray = _import_ray()
        self._actors: list[Any] = []
        self._started = False

    def __enter__(self) -> RayWorkers:
        if not self._ray.is_initialized():
            self._start()
            self._check_size()
        self._actors = [self._actor() for _ in range(self.num_workers)]
        return self

    def __exit__(self, *_exception: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()

    def each(self, method: str, calls: Sequence[tuple]) -> Iterator[tuple[int, Any]]:
        """As `LocalWorkers.each`; a call whose worker died is made again by another one."""
        upcoming = deque(range(len(calls)))
        deaths = [0] * len(calls)
        busy: dict[Any, tuple[int, int]] = {}
        idle = list(range(len(self._actors)))
        while upcoming or busy:
            while upcoming and idle:
                place, actor = upcoming.popleft(), idle.pop()
                busy[getattr(self._actors[actor], method).remote(*calls[place])] = (place, actor)
            (ready, *_), _ = self._ray.wait(list(busy), num_returns=1)
            place, actor = busy.pop(ready)
            idle.append(actor)
            try:
                result = self._ray.get(ready)
            except self._ray.exceptions.RayActorError as error:
                deaths[place] += 1
                self._replace(actor, deaths[place], error)
                upcoming.appendleft(place)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            yield place, result

    def forget(self) -> None:
        """Have what was written read from the disk from now on, on every node."""
        self._ray.get([actor.forget.remote() for actor in self._actors])

    def _start(self) -> None:
        try:
            self._ray.init(
                address=self._address,
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

    def _actor(self) -> Any:
        # In somebody's run all CPUs may be taken by what waits for this conversion.
        num_cpus = 1 if self._started else 0
        remote = self._ray.remote(num_cpus=num_cpus, scheduling_strategy="SPREAD")(Worker)
        return remote.remote(*self._arguments)

    def _replace(self, actor: int, num_deaths: int, error: Exception) -> None:
        if num_deaths >= MOST_DEATHS:
            raise PeriodicError(
                f"{num_deaths} workers have died over the same task.",
                feature=SLUG,
                found=str(error).splitlines()[0],
                remedy="Look for what ends them, such as too little memory; then go on with "
                "--resume.",
            ) from error
        self._actors[actor] = self._actor()


def _cause(error: Any) -> Exception:
    """The error that a worker raised, without Ray's frame around it."""
    return error.cause if isinstance(error.cause, PeriodicError) else error


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
