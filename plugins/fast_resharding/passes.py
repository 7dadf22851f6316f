"""The passes over the tasks of a conversion: converting, reading back, verifying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_periodic.plugins.fast_resharding.node_files import ANYWHERE
from miles_periodic.plugins.fast_resharding.report import Progress
from miles_periodic.plugins.fast_resharding.source_checksums import SourceChecksums
from miles_periodic.plugins.fast_resharding.staging import Recorded, Staging
from miles_periodic.plugins.fast_resharding.tasks import Task, source_bytes


@dataclass
class Results:
    """What the tasks came to. checksums: of each task's units, by the task's number."""

    checksums: dict[int, Sequence[str]]
    sources: SourceChecksums
    read_bytes: int = 0
    copied_bytes: int = 0
    fetched_bytes: int = 0
    resumed_bytes: int = 0


def convert(
    tasks: Sequence[Task],
    pool: Any,
    staging: Staging,
    recorded: Mapping[int, Recorded],
    on_progress: Callable[[Progress], None],
) -> Results:
    """Do what an earlier run has not recorded as done, or what is no longer there of that."""
    results = Results(_still_there(tasks, pool, recorded, on_progress), SourceChecksums())
    total = _num_bytes(tasks)
    for number in results.checksums:
        results.sources.add(recorded[number].sources)
    left = [task for task in tasks if task.number not in results.checksums]
    done = results.resumed_bytes = total - _num_bytes(left)
    on_progress(Progress("converting", done, total))
    for _, task_done in pool.each("run", [(task,) for task in left], _homes(left)):
        results.sources.add(task_done.sources)
        staging.record(task_done)
        results.checksums[task_done.number] = task_done.checksums
        results.read_bytes += task_done.read_bytes
        results.copied_bytes += task_done.copied_bytes
        results.fetched_bytes += task_done.fetched_bytes
        done += task_done.written_bytes
        on_progress(Progress("converting", done, total))
    left_over = results.sources.left()
    homes = [_readers(tasks, storage.file) for storage, _ in left_over]
    for _, rest in pool.each("read_rest", left_over, homes):
        results.sources.add(rest)
    return results


def _still_there(
    tasks: Sequence[Task],
    pool: Any,
    recorded: Mapping[int, Recorded],
    on_progress: Callable[[Progress], None],
) -> dict[int, Sequence[str]]:
    """Of what an earlier run has recorded as done, what the shards really hold."""
    told = {number: found.checksums for number, found in recorded.items()}
    claimed = [t for t in tasks if len(told.get(t.number, ())) == len(t.units)]
    total, done, there = _num_bytes(claimed), 0, {}
    calls = [(task, told[task.number]) for task in claimed]
    for number, holds in pool.each("written", calls, _homes(claimed)):
        task = claimed[number]
        done += task.num_bytes
        on_progress(Progress("reading back", done, total))
        if holds:
            there[task.number] = told[task.number]
    return there


def verify(
    tasks: Sequence[Task],
    pool: Any,
    checksums: Mapping[int, Sequence[str]],
    on_progress: Callable[[Progress], None],
) -> None:
    """Read source and target again. Raises PeriodicError where they do not agree."""
    total, done = _num_bytes(tasks), 0
    on_progress(Progress("verifying", done, total))
    calls = [(task, checksums[task.number]) for task in tasks]
    for number, _ in pool.each("verify", calls, _homes(tasks)):
        done += tasks[number].num_bytes
        on_progress(Progress("verifying", done, total))


def _num_bytes(tasks: Sequence[Task]) -> int:
    return sum(task.num_bytes for task in tasks)


def _homes(tasks: Sequence[Task]) -> list[frozenset[str]]:
    return [task.homes for task in tasks]


def _readers(tasks: Sequence[Task], file: str) -> frozenset[str]:
    """The homes of tasks that read a file; all of them can."""
    homes = {t.homes for t in tasks if any(file in source_bytes(unit) for unit in t.units)}
    return ANYWHERE if ANYWHERE in homes else frozenset().union(*homes)
