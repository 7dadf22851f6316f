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

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding import passes
from miles_periodic.plugins.fast_resharding.beside_shards import (
    MANIFEST,
    files_to_carry,
    manifest,
    published_config,
)
from miles_periodic.plugins.fast_resharding.conversion import stored_bytes
from miles_periodic.plugins.fast_resharding.dcp_checkpoint import (
    Checkpoint,
    file_ends,
    read_checkpoint,
)
from miles_periodic.plugins.fast_resharding.element_policy import FROM_ORIGIN, check_policy
from miles_periodic.plugins.fast_resharding.families.known import all_families, family_of
from miles_periodic.plugins.fast_resharding.families.table import Family
from miles_periodic.plugins.fast_resharding.local_workers import LocalWorkers
from miles_periodic.plugins.fast_resharding.model_config import CONFIG, ModelConfig, read_config
from miles_periodic.plugins.fast_resharding.node_files import (
    NodeFiles,
    check_lengths,
    check_unchanged,
)
from miles_periodic.plugins.fast_resharding.origin import read_origin
from miles_periodic.plugins.fast_resharding.planner import Plan, plan_targets
from miles_periodic.plugins.fast_resharding.quantising import check_scheme
from miles_periodic.plugins.fast_resharding.report import Progress, Report
from miles_periodic.plugins.fast_resharding.settings import (
    SHARD_BYTES,
    SLUG,
    TASK_BYTES,
    UNIT_BYTES,
)
from miles_periodic.plugins.fast_resharding.shard_layout import Layout, lay_out
from miles_periodic.plugins.fast_resharding.staging import Staging
from miles_periodic.plugins.fast_resharding.tasks import Task, Unit, make_tasks
from miles_periodic.plugins.fast_resharding.worker import memory_bound_bytes

#: Threads of a conversion in one process; more do not read faster from one disk.
MOST_THREADS = 4


@dataclass(frozen=True)
class _Wanted:
    """What metadata alone decide. ends: by file of the source, the last byte that is needed."""

    checkpoint: Checkpoint
    config: ModelConfig
    family: Family
    plan: Plan
    layout: Layout
    ends: Mapping[str, int]


@dataclass(frozen=True)
class _Work(_Wanted):
    files: NodeFiles
    tasks: Sequence[Task]


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
    _check_options(workers, address, dtype, quantize)
    target = Path(target).absolute()
    wanted = _prepare(
        Path(source).absolute(),
        read_config(Path(config).absolute(), changes),
        model_type,
        tuple(all_families() if families is None else families),
        {"dtype": dtype, "quantize": quantize, "ignore": tuple(ignore)},
        shard_bytes,
    )
    with _workers(wanted.checkpoint.folder, workers, address) as pool:
        work = _with_tasks(wanted, pool, unit_bytes, task_bytes)
        with Staging(target, replace=replace) as staging:
            recorded = staging.begin(work.layout, _fingerprint(work), resume=resume)
            pool.open(staging.folder, work.tasks, work.files)
            results = passes.convert(work.tasks, pool, staging, recorded, on_progress)
            if verify:
                pool.forget()
                staging.check_headers(work.layout)
                passes.verify(work.tasks, pool, results.checksums, on_progress)
            check_unchanged(work.checkpoint.folder, work.files, pool.find_files(list(work.ends)))
            _write_rest(work, staging, results.checksums)
            staging.publish()
    return _report(work, target, results, pool.num_workers, verify, time.monotonic() - begun)


def _check_options(workers: int, address: str | None, dtype: str, quantize: str | None) -> None:
    """What is wrong whatever the checkpoint holds."""
    check_policy(dtype)
    if quantize is not None:
        check_scheme(quantize)
    if workers < 0:
        raise PeriodicError(
            "A conversion has no fewer workers than none.",
            feature=SLUG,
            target="--workers",
            found=f"{workers}",
            remedy="Give a number from 0; 0 converts in this process.",
        )
    if address is not None and not workers:
        raise PeriodicError(
            "A conversion without workers uses no Ray cluster.",
            feature=SLUG,
            target="--address",
            found=address,
            remedy="Say with --workers how many actors of the cluster convert, or leave "
            "--address out.",
        )


def _prepare(
    source: Path,
    config: ModelConfig,
    model_type: str | None,
    families: Sequence[Family],
    options: Mapping[str, Any],
    shard_bytes: int,
) -> _Wanted:
    checkpoint = read_checkpoint(source)
    family = family_of(model_type or config.model_type, families)
    plan = plan_targets(checkpoint, config, family, read_origin(config.folder), **options)
    layout = lay_out(plan.targets, shard_bytes)
    keys = {piece.source for target in plan.targets for piece in target.pieces}
    return _Wanted(checkpoint, config, family, plan, layout, file_ends(checkpoint, keys))


def _with_tasks(wanted: _Wanted, pool: Any, unit_bytes: int, task_bytes: int) -> _Work:
    """Tasks for the nodes that hold what they read."""
    files = pool.find_files(list(wanted.ends))
    check_lengths(wanted.checkpoint.folder, wanted.ends, files)
    sources = wanted.checkpoint.tensors
    sizes = {"unit_bytes": unit_bytes, "task_bytes": task_bytes}
    return _Work(
        **vars(wanted), files=files, tasks=make_tasks(wanted.layout, sources, files, **sizes)
    )


def _fingerprint(work: _Work) -> dict[str, Any]:
    """What the bytes of every task depend on, for a run that goes on with another's work."""
    headers = hashlib.sha256()
    for shard in work.layout.shards:
        headers.update(shard.header)
    return {
        "source": str(work.checkpoint.folder),
        "checkpoint": work.checkpoint.digest,
        "files": [[name, *state] for name, state in sorted(work.files.states.items())],
        "target tensors": headers.hexdigest(),
        "sources of target tensors": _digest_of_pieces(work),
        "tasks": [[len(task.units), task.units[0].target] for task in work.tasks],
    }


def _digest_of_pieces(work: _Work) -> str:
    """The same rows of a source are other heads' under another config of the same shapes."""
    pieces = hashlib.sha256()
    for target in work.plan.targets:
        pieces.update(repr((target.name, target.source_element.name, target.pieces)).encode())
    return pieces.hexdigest()


def _units(work: _Work) -> Iterator[Unit]:
    return (unit for task in work.tasks for unit in task.units)


def _workers(source: Path, num_workers: int, address: str | None) -> AbstractContextManager:
    if num_workers == 0:
        return LocalWorkers(source, min(MOST_THREADS, os.cpu_count() or 1))
    from miles_periodic.plugins.fast_resharding.ray_workers import RayWorkers

    return RayWorkers(source, num_workers, address)


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
    work: _Work,
    target: Path,
    results: passes.Results,
    num_workers: int,
    verified: bool,
    seconds: float,
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
        fetched_bytes=results.fetched_bytes,
        resumed_bytes=results.resumed_bytes,
        checked_bytes=results.sources.checked_bytes,
        unchecked_bytes=results.sources.unchecked_bytes,
        worker_memory_bytes=memory_bound_bytes(largest, fetches=results.fetched_bytes > 0),
        verified=verified,
        seconds=seconds,
    )
