"""`reshard`: the whole way from a checkpoint to a published folder."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from miles_periodic.plugins.fast_resharding.beside_shards import (
    MANIFEST,
    files_to_carry,
    manifest,
    published_config,
)
from miles_periodic.plugins.fast_resharding.conversion import stored_bytes
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import Checkpoint, read_checkpoint
from miles_periodic.plugins.fast_resharding.families.known import all_families, family_of
from miles_periodic.plugins.fast_resharding.families.table import Family
from miles_periodic.plugins.fast_resharding.local_workers import LocalWorkers
from miles_periodic.plugins.fast_resharding.model_config import CONFIG, ModelConfig, read_config
from miles_periodic.plugins.fast_resharding.origin import read_origin
from miles_periodic.plugins.fast_resharding.planner import FROM_ORIGIN, Plan, plan_targets
from miles_periodic.plugins.fast_resharding.settings import SHARD_BYTES, TASK_BYTES, UNIT_BYTES
from miles_periodic.plugins.fast_resharding.shard_layout import Layout, lay_out
from miles_periodic.plugins.fast_resharding.staging import Staging
from miles_periodic.plugins.fast_resharding.tasks import Task, Unit, make_tasks
from miles_periodic.plugins.fast_resharding.worker import memory_bound_bytes

#: Threads of a conversion in one process; more do not read faster from one disk.
MOST_THREADS = 4


@dataclass(frozen=True)
class Progress:
    """doing: `reading back` (a resumed run), `converting` or `verifying`. Bytes: the target's."""

    doing: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Report:
    """What a conversion did. Bytes are of tensors, but for read_bytes, which are of files.

    resumed_bytes: already there from an earlier run. copied_bytes: what could not be read in
    place. worker_memory_bytes: bound of what each worker held.
    """

    source: str
    target: str
    family: str
    num_tensors: int
    num_shards: int
    num_tasks: int
    num_workers: int
    target_bytes: int
    converted_bytes: int
    padding_bytes: int
    ignored_bytes: int
    read_bytes: int
    copied_bytes: int
    resumed_bytes: int
    worker_memory_bytes: int
    verified: bool
    seconds: float


@dataclass(frozen=True)
class _Work:
    checkpoint: Checkpoint
    config: ModelConfig
    family: Family
    plan: Plan
    layout: Layout
    tasks: Sequence[Task]

    @property
    def total_bytes(self) -> int:
        return sum(task.num_bytes for task in self.tasks)


def reshard(
    source: str | Path,
    target: str | Path,
    *,
    config: str | Path,
    model_type: str | None = None,
    changes: Mapping[str, Any] | None = None,
    workers: int = 0,
    address: str | None = None,
    dtype: str = FROM_ORIGIN,
    quantize: str | None = None,
    ignore: Iterable[str] = (),
    verify: bool = False,
    resume: bool = False,
    replace: bool = False,
    shard_bytes: int = SHARD_BYTES,
    unit_bytes: int = UNIT_BYTES,
    task_bytes: int = TASK_BYTES,
    families: Sequence[Family] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Write the torch_dist checkpoint `source` as safetensors into the new folder `target`.

    config: folder of the model in Hugging Face's form; its weights, where they are there, say
    names and element types. model_type: a family, where the config's own is not it. changes: to
    keys of its config.json. workers: Ray actors, on the cluster at `address` or one that is
    started here; 0 for threads of this process. dtype, quantize: see `plan_targets`.
    replace: whether `target` may be there; it then stays as it is until the new one is whole.

    Raises PeriodicError with what to change; `target` then does not exist, and what was done
    stays beside it for `resume`.
    """
    begun = time.monotonic()
    target = Path(target).absolute()
    work = _prepare(
        Path(source).absolute(),
        read_config(Path(config).absolute(), changes),
        model_type,
        tuple(all_families() if families is None else families),
        {"dtype": dtype, "quantize": quantize, "ignore": tuple(ignore)},
        (shard_bytes, unit_bytes, task_bytes),
    )
    with Staging(target, replace=replace) as staging:
        recorded = staging.begin(work.layout, _fingerprint(work), resume=resume)
        with _workers(work, staging, workers, address) as pool:
            results = _convert(work, pool, staging, recorded, on_progress)
            if verify:
                pool.forget()
                staging.check_headers(work.layout)
                _verify(work, pool, results.checksums, on_progress)
            num_workers = pool.num_workers
        _write_rest(work, staging, results.checksums)
        staging.publish()
    return _report(work, target, results, num_workers, verify, time.monotonic() - begun)


def _prepare(
    source: Path,
    config: ModelConfig,
    model_type: str | None,
    families: Sequence[Family],
    options: Mapping[str, Any],
    sizes: tuple[int, int, int],
) -> _Work:
    shard_bytes, unit_bytes, task_bytes = sizes
    checkpoint = read_checkpoint(source)
    family = family_of(model_type or config.model_type, families)
    plan = plan_targets(checkpoint, config, family, read_origin(config.folder), **options)
    layout = lay_out(plan.targets, shard_bytes)
    tasks = make_tasks(layout, checkpoint.tensors, unit_bytes=unit_bytes, task_bytes=task_bytes)
    return _Work(checkpoint, config, family, plan, layout, tasks)


def _fingerprint(work: _Work) -> dict[str, Any]:
    """What the bytes of every task depend on, for a run that goes on with another's work."""
    headers = hashlib.sha256()
    for shard in work.layout.shards:
        headers.update(shard.header)
    files = sorted({c.file for u in _units(work) for r in u.readings for c in r.chunks})
    states = [(name, os.stat(work.checkpoint.folder / name)) for name in files]
    return {
        "source": str(work.checkpoint.folder),
        "checkpoint": work.checkpoint.digest,
        "files": [[name, state.st_size, state.st_mtime_ns] for name, state in states],
        "target tensors": headers.hexdigest(),
        "sources of target tensors": _digest_of_pieces(work),
        "tasks": [len(task.units) for task in work.tasks],
    }


def _digest_of_pieces(work: _Work) -> str:
    """The same rows of a source are other heads' under another config of the same shapes."""
    pieces = hashlib.sha256()
    for target in work.plan.targets:
        pieces.update(repr((target.name, target.source_element.name, target.pieces)).encode())
    return pieces.hexdigest()


def _units(work: _Work) -> Iterator[Unit]:
    return (unit for task in work.tasks for unit in task.units)


def _workers(
    work: _Work, staging: Staging, num_workers: int, address: str | None
) -> AbstractContextManager:
    places = (work.checkpoint.folder, staging.content)
    if num_workers == 0:
        threads = min(MOST_THREADS, os.cpu_count() or 1, max(1, len(work.tasks)))
        return LocalWorkers(*places, threads)
    from miles_periodic.plugins.fast_resharding.ray_workers import RayWorkers

    return RayWorkers(*places, num_workers, address)


@dataclass
class _Results:
    """What the tasks came to. checksums: of each task's units, by the task's number."""

    checksums: dict[int, Sequence[str]]
    read_bytes: int = 0
    copied_bytes: int = 0
    resumed_bytes: int = 0


def _convert(
    work: _Work,
    pool: Any,
    staging: Staging,
    recorded: Mapping[int, Sequence[str]],
    on_progress: Callable[[Progress], None],
) -> _Results:
    results = _Results(_still_there(work, pool, recorded, on_progress))
    left = [task for task in work.tasks if task.number not in results.checksums]
    done = results.resumed_bytes = work.total_bytes - sum(task.num_bytes for task in left)
    on_progress(Progress("converting", done, work.total_bytes))
    for _, task_done in pool.each("run", [(task,) for task in left]):
        staging.record(task_done)
        results.checksums[task_done.number] = task_done.checksums
        results.read_bytes += task_done.read_bytes
        results.copied_bytes += task_done.copied_bytes
        done += task_done.written_bytes
        on_progress(Progress("converting", done, work.total_bytes))
    return results


def _still_there(
    work: _Work,
    pool: Any,
    recorded: Mapping[int, Sequence[str]],
    on_progress: Callable[[Progress], None],
) -> dict[int, Sequence[str]]:
    """Of what an earlier run has recorded as done, what the shards really hold."""
    claimed = [t for t in work.tasks if len(recorded.get(t.number, ())) == len(t.units)]
    total, done, there = sum(task.num_bytes for task in claimed), 0, {}
    for place, holds in pool.each("written", [(t, recorded[t.number]) for t in claimed]):
        task = claimed[place]
        done += task.num_bytes
        on_progress(Progress("reading back", done, total))
        if holds:
            there[task.number] = recorded[task.number]
    return there


def _verify(
    work: _Work,
    pool: Any,
    checksums: Mapping[int, Sequence[str]],
    on_progress: Callable[[Progress], None],
) -> None:
    done = 0
    on_progress(Progress("verifying", done, work.total_bytes))
    for place, _ in pool.each("verify", [(t, checksums[t.number]) for t in work.tasks]):
        done += work.tasks[place].num_bytes
        on_progress(Progress("verifying", done, work.total_bytes))


def _write_rest(work: _Work, staging: Staging, checksums: Mapping[int, Sequence[str]]) -> None:
    """All files of the target but its shards."""
    for path in files_to_carry(work.config.folder):
        staging.carry(path)
    staging.write(CONFIG, published_config(work.config, work.plan.targets))
    index = work.layout.index()
    if index:
        staging.write(*index)
    told = manifest(work.checkpoint, work.family, work.layout, work.tasks, checksums)
    staging.write(MANIFEST, told)


def _report(
    work: _Work, target: Path, results: _Results, num_workers: int, verified: bool, seconds: float
) -> Report:
    largest = max(max(stored_bytes(unit), unit.num_bytes) for unit in _units(work))
    return Report(
        source=str(work.checkpoint.folder),
        target=str(target),
        family=work.family.name,
        num_tensors=work.layout.num_tensors,
        num_shards=len(work.layout.shards),
        num_tasks=len(work.tasks),
        num_workers=num_workers,
        target_bytes=work.layout.tensor_bytes,
        **asdict(work.plan.source_bytes),
        read_bytes=results.read_bytes,
        copied_bytes=results.copied_bytes,
        resumed_bytes=results.resumed_bytes,
        worker_memory_bytes=memory_bound_bytes(largest),
        verified=verified,
        seconds=seconds,
    )
