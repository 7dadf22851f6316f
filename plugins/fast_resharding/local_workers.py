"""Tasks in this process: one thread per worker, for reading and writing do not hold the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from miles_periodic.plugins.fast_resharding.node_files import NodeFiles, agreed, look
from miles_periodic.plugins.fast_resharding.settings import CONTENT
from miles_periodic.plugins.fast_resharding.tasks import Task
from miles_periodic.plugins.fast_resharding.worker import Worker


class LocalWorkers:
    """Use it in a `with` block. num_workers: threads, each with memory of its own."""

    def __init__(self, source: Path, num_workers: int) -> None:
        self.num_workers = num_workers
        self._source = source
        self._arguments: tuple[str, ...] = ()
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> LocalWorkers:
        self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="reshard")
        return self

    def __exit__(self, *_exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def find_files(self, names: Sequence[str]) -> NodeFiles:
        """What of the source's files is there."""
        return agreed(self._source, {"": look(str(self._source), names)})

    def open(self, staging: Path, tasks: Sequence[Task], files: NodeFiles) -> None:
        """Have workers for these tasks, which write into `staging`."""
        self.num_workers = min(self.num_workers, len(tasks))
        self._arguments = (str(self._source), str(staging / CONTENT))

    def each(
        self, method: str, calls: Sequence[tuple], homes: Sequence[frozenset[str]]
    ) -> Iterator[tuple[int, Any]]:
        """Call a method of a worker with each of `calls`; (its number, its result) as they come.

        homes: of each call, the nodes that hold the most of what it reads, or `ANYWHERE`. The
        first error is raised and no further call is begun.
        """
        waiting: dict[Future, int] = {}
        upcoming = iter(enumerate(calls))
        for number, arguments in upcoming:
            waiting[self._pool.submit(self._call, method, arguments)] = number
            if len(waiting) >= 2 * self.num_workers:
                yield from self._finished(waiting)
        while waiting:
            yield from self._finished(waiting)

    def forget(self) -> None:
        """Have what was written read from the disk from now on."""
        for worker in self._workers:
            worker.forget()

    def _call(self, method: str, arguments: tuple) -> Any:
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker(*self._arguments)
            self._workers.append(self._own.worker)
        call: Callable = getattr(self._own.worker, method)
        return call(*arguments)

    @staticmethod
    def _finished(waiting: dict[Future, int]) -> Iterator[tuple[int, Any]]:
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield waiting.pop(future), future.result()
