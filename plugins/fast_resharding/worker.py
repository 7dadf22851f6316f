"""One worker: runs tasks, and checks what tasks have written. Its memory does not grow."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.conversion import stored_bytes, unit_bytes
from miles_periodic.plugins.fast_resharding.settings import SCRATCH_BYTES, SLUG
from miles_periodic.plugins.fast_resharding.source_checksums import Storage, StorageRead
from miles_periodic.plugins.fast_resharding.source_reader import Elsewhere, SourceReader
from miles_periodic.plugins.fast_resharding.tasks import Task, Unit


@dataclass(frozen=True)
class TaskDone:
    """checksums: XXH3-64 of each of the task's units. sources: what was read of what.

    The rest: bytes, as in `Counters`.
    """

    number: int
    checksums: tuple[str, ...]
    written_bytes: int
    read_bytes: int
    copied_bytes: int
    fetched_bytes: int = 0
    sources: tuple[StorageRead, ...] = ()


class Worker:
    """source: the checkpoint's folder. target: the folder that has every shard, already sized.

    elsewhere: what other nodes read for this one.
    """

    def __init__(
        self, source: str, target: str, elsewhere: Elsewhere | Collection[str] = ()
    ) -> None:
        self._target = Path(target)
        self._reader = SourceReader(Path(source), elsewhere)
        self._shards: dict[str, int] = {}
        self._buffer = np.empty(0, np.uint8)

    def run(self, task: Task) -> TaskDone:
        """Write every unit of the task into its place; the same again if it is run again.

        It is on the disk when this returns, so that other workers read while this one writes.
        """
        before = self._counted()
        self._reader.stretches.take()
        checksums = []
        for unit in task.units:
            data = self._converted(unit)
            self._write(unit, memoryview(data))
            checksums.append(checksum(data))
        self._to_disk({unit.shard for unit in task.units})
        counted = (b - a for a, b in zip(before, self._counted(), strict=True))
        sources = self._reader.stretches.take()
        return TaskDone(task.number, tuple(checksums), task.num_bytes, *counted, sources)

    def read_rest(
        self, storage: Storage, gaps: Sequence[tuple[int, int]]
    ) -> tuple[StorageRead, ...]:
        """What no task has read of a storage, so that its checksum can be compared."""
        self._reader.stretches.take()
        self._reader.read_rest(storage, gaps)
        return self._reader.stretches.take()

    def written(self, task: Task, checksums: Sequence[str]) -> bool:
        """Whether the target holds what a task with these checksums has written."""
        return all(
            self._checksum_in_target(unit) == expected
            for unit, expected in zip(task.units, checksums, strict=True)
        )

    def verify(self, task: Task, checksums: Sequence[str]) -> None:
        """Read both sides of a task again and compare each with what was written.

        Raises PeriodicError that names the tensor and the side.
        """
        for unit, expected in zip(task.units, checksums, strict=True):
            for side, found in (
                ("source", checksum(self._converted(unit))),
                ("target", self._checksum_in_target(unit)),
            ):
                if found != expected:
                    raise PeriodicError(
                        f"Reading {unit.target} again from the {side} gives other bytes.",
                        feature=SLUG,
                        target=f"{unit.shard} at {unit.extents[0][0]:,}, {unit.num_bytes:,} bytes",
                        expected=expected,
                        found=found,
                        remedy="Check the disk that the file lies on, then convert again.",
                    )
        self._reader.stretches.take()  # their checksums were compared when they were first read

    def forget(self) -> None:
        """Let the system forget what it cached of the shards: they are read from the disk next."""
        for shard in self._shards.values():
            os.posix_fadvise(shard, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._reader.close()
        while self._shards:
            os.close(self._shards.popitem()[1])

    def _counted(self) -> tuple[int, int, int]:
        counters = self._reader.counters
        return counters.read_bytes, counters.copied_bytes, counters.fetched_bytes

    def _converted(self, unit: Unit) -> np.ndarray:
        """The unit's bytes; they are overwritten by the next call."""
        if self._buffer.nbytes < stored_bytes(unit):
            self._buffer = np.empty(stored_bytes(unit), np.uint8)
        return unit_bytes(unit, self._reader, self._buffer)

    def _checksum_in_target(self, unit: Unit) -> str:
        shard = self._shard(unit)
        parts = [os.pread(shard, num_bytes, start) for start, num_bytes in unit.extents]
        return checksum(parts[0] if len(parts) == 1 else b"".join(parts))

    def _shard(self, unit: Unit) -> int:
        if unit.shard not in self._shards:
            self._shards[unit.shard] = os.open(self._target / unit.shard, os.O_RDWR | os.O_CLOEXEC)
        return self._shards[unit.shard]

    def _to_disk(self, shards: Iterable[str]) -> None:
        for shard in shards:
            try:
                os.fdatasync(self._shards[shard])
            except OSError as error:
                raise write_error(self._target / shard, error) from error

    def _write(self, unit: Unit, data: memoryview) -> None:
        try:
            shard, taken = self._shard(unit), 0
            for start, num_bytes in unit.extents:
                _write_all(shard, data[taken : taken + num_bytes], start)
                taken += num_bytes
        except OSError as error:
            raise write_error(self._target / unit.shard, error) from error


def _write_all(file: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], start + done)


def memory_bound_bytes(largest_unit_bytes: int, *, fetches: bool) -> int:
    """What a worker holds at most besides its interpreter: a unit in both types, and scratch."""
    return 2 * largest_unit_bytes + (2 if fetches else 1) * SCRATCH_BYTES


def checksum(data: bytes | np.ndarray) -> str:
    """XXH3-64, hexadecimal."""
    try:
        import xxhash
    except ImportError as error:
        raise PeriodicError(
            "The package xxhash is not installed.",
            feature=SLUG,
            remedy="Install miles-periodic[reshard].",
        ) from error
    return xxhash.xxh3_64_hexdigest(data)


def write_error(path: Path, error: OSError) -> PeriodicError:
    """What a user can do about a failed write."""
    remedy = {
        errno.ENOSPC: "Free space on its disk, then go on with --resume.",
        errno.EDQUOT: "Free space in your quota, then go on with --resume.",
        errno.EROFS: "Choose a target on a file system that can be written to.",
        errno.EACCES: "Choose a target in a folder that you may write to.",
        errno.EPERM: "Choose a target in a folder that you may write to.",
        errno.EEXIST: "Choose another target, or remove that one, then go on with --resume.",
        errno.ENOTEMPTY: "Choose another target, or remove that one, then go on with --resume.",
        errno.EBUSY: "Choose a target that is no mount point, in a folder of its file system.",
        errno.EXDEV: "Choose a target that is no mount point, in a folder of its file system.",
        errno.ENAMETOOLONG: "Choose a shorter name for the target.",
        errno.EISDIR: "Remove the folder that has the name of a file, then go on with --resume.",
        errno.ENOTDIR: "Choose a target in a folder, not below a file.",
        errno.ENOLCK: "Choose a target on a file system that can lock files.",
        errno.ENOTSUP: "Choose a target on a file system that can lock files.",
        errno.ENOSYS: "Choose a target on a file system that can lock files.",
        errno.ENOENT: "Choose a target on a file system that every worker's node has.",
    }
    return PeriodicError(
        f"{path} cannot be written: {error.strerror}.",
        feature=SLUG,
        remedy=remedy.get(error.errno, "Mend the disk, then go on with --resume."),
    )
