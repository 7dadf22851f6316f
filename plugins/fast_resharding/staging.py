"""The folder beside the target in which it is made, until one rename publishes it.

A lock keeps a second run out. A journal says which tasks are done, with the checksums of what they
wrote, so that a run that was killed is gone on with. Nothing under the target's name exists before
everything is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import operator
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fast_resharding.settings import CONTENT, LOCK, SLUG
from miles_periodic.plugins.fast_resharding.shard_layout import Layout
from miles_periodic.plugins.fast_resharding.source_checksums import Storage, StorageRead, Stretch
from miles_periodic.plugins.fast_resharding.worker import TaskDone, write_error

_PLAN, _JOURNAL, _BEFORE = "plan.json", "done.jsonl", "before"


def staging_folder(target: Path) -> Path:
    return target.parent / f".{target.name}.resharding"


class Recorded(NamedTuple):
    """What the journal says of a task: as in `TaskDone`."""

    checksums: tuple[str, ...]
    sources: tuple[StorageRead, ...]


class Staging:
    """Use it in a `with` block, which holds the lock; what was made stays until it is published.

    replace: whether the target may be there; what it was goes once the new one has its name.
    """

    def __init__(self, target: Path, *, replace: bool = False) -> None:
        self.target = target
        self._replace = replace
        self.folder = staging_folder(target)
        self.content = self.folder / CONTENT
        self._lock: int | None = None
        self._journal: Any = None

    def __enter__(self) -> Staging:
        if os.path.lexists(self.target) and not self._replace:
            raise PeriodicError(
                f"{self.target} exists.",
                feature=SLUG,
                remedy="Choose another target, or remove that one first.",
            )
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(exist_ok=True)
            self._take_lock()
            self._put_back()
        except OSError as error:
            self.__exit__()
            raise write_error(self.folder, error) from error
        except PeriodicError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._journal is not None:
            # What could not be written was an error when it was recorded.
            with contextlib.suppress(OSError):
                self._journal.close()
        if self._lock is not None:
            os.close(self._lock)

    def begin(
        self, layout: Layout, plan: Mapping[str, Any], *, resume: bool
    ) -> dict[int, Recorded]:
        """Make every shard in its full size; what an earlier run has recorded, by task.

        plan: what the bytes of every task depend on. Raises PeriodicError where something is left
        of an earlier run and `resume` is off, or its plan was another one.
        """
        plan_file = self.folder / _PLAN
        if self._replace and not resume:
            plan_file.unlink(missing_ok=True)
        if plan_file.exists() and not resume:
            raise PeriodicError(
                f"An earlier run has left {self.folder} unfinished.",
                feature=SLUG,
                remedy="Go on with it with --resume, or remove that folder.",
            )
        try:
            if plan_file.exists():
                self._check_plan(plan_file, plan)
            else:
                shutil.rmtree(self.content, ignore_errors=True)
                (self.folder / _JOURNAL).unlink(missing_ok=True)
            self._check_space(layout)
            self.content.mkdir(exist_ok=True)
            for shard in layout.shards:
                _make_shard(self.content / shard.name, shard.header, shard.num_bytes)
            _write_whole(plan_file, json.dumps(plan).encode())
            done = self._read_journal()
            self._journal = (self.folder / _JOURNAL).open("a", encoding="utf-8")
            # An empty line ends one that a kill has cut off.
            self._journal.write("\n")
        except OSError as error:
            raise write_error(self.folder, error) from error
        return done

    def record(self, done: TaskDone) -> None:
        """Note that a task is done."""
        told = {"checksums": done.checksums, "sources": done.sources}
        line = json.dumps({"task": done.number, **told})
        try:
            self._journal.write(line + "\n")
            self._journal.flush()
        except OSError as error:
            raise write_error(self.folder / _JOURNAL, error) from error

    def check_headers(self, layout: Layout) -> None:
        """Read every shard's header and length again."""
        for shard in layout.shards:
            path = self.content / shard.name
            with path.open("rb") as file:
                found = file.read(len(shard.header))
            if found != shard.header or path.stat().st_size != shard.num_bytes:
                raise PeriodicError(
                    f"Reading the header of {shard.name} again gives other bytes.",
                    feature=SLUG,
                    target=str(path),
                    remedy="Check the disk that the file lies on, then convert again.",
                )

    def write(self, name: str, data: bytes) -> None:
        """A further file of the target."""
        try:
            _write_whole(self.content / name, data)
        except OSError as error:
            raise write_error(self.content / name, error) from error

    def carry(self, path: Path) -> None:
        """A further file of the target, as it is."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise PeriodicError(
                f"{path} cannot be carried over: {error.strerror}.",
                feature=SLUG,
                remedy="Make it readable, then go on with --resume.",
            ) from error
        self.write(path.name, data)

    def publish(self) -> None:
        """Give the content its name, and remove what was only needed to make it."""
        try:
            for path in (*self.content.iterdir(), self.content):
                _sync(path)
            self._rename()
        except OSError as error:
            raise write_error(self.target, error) from error
        # The target is there: what cannot be cleaned up must not say otherwise.
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rename(self) -> None:
        """The content under the target's name; what had it before is back where that fails."""
        before = self.folder / _BEFORE
        replaces = self._replace and os.path.lexists(self.target)
        if replaces:
            _remove(before)
            os.rename(self.target, before)
        try:
            os.rename(self.content, self.target)
            try:
                _sync(self.target.parent)
            except OSError:
                # A name that may be gone after a power cut is no published model.
                os.rename(self.target, self.content)
                raise
        except OSError:
            if replaces:
                os.rename(before, self.target)
            raise

    def _put_back(self) -> None:
        """What a kill between the two renames of `_rename` has left without its name."""
        before = self.folder / _BEFORE
        if os.path.lexists(before) and not os.path.lexists(self.target):
            os.rename(before, self.target)

    def _take_lock(self) -> None:
        path = self.folder / LOCK
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = path.read_text(encoding="utf-8").strip() or "another process"
            raise PeriodicError(
                f"{self.target} is being made by {holder}.",
                feature=SLUG,
                remedy="Wait for it, or end it and go on with --resume.",
            ) from error
        if not path.exists() or not os.path.samestat(os.fstat(self._lock), path.stat()):
            raise PeriodicError(
                f"{self.target} has just been made by another process.",
                feature=SLUG,
                remedy="Use it, or remove it and start again.",
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _check_plan(self, path: Path, plan: Mapping[str, Any]) -> None:
        with contextlib.suppress(TypeError, ValueError):
            found = dict(json.loads(path.read_text(encoding="utf-8")))
            changed = [name for name, value in plan.items() if found.get(name) != value]
            if not changed:
                return
            raise PeriodicError(
                f"{self.folder} was begun with another plan.",
                feature=SLUG,
                found=f"another {', '.join(changed)}",
                remedy="Give the same source, config and options again, or remove that folder.",
            )
        path.unlink()

    def _check_space(self, layout: Layout) -> None:
        paths = [self.content / shard.name for shard in layout.shards]
        held = sum(path.stat().st_blocks * 512 for path in paths if path.exists())
        free = shutil.disk_usage(self.folder).free
        if free + held < layout.num_bytes:
            raise PeriodicError(
                f"The disk of {self.target} has too little space.",
                feature=SLUG,
                expected=f"{layout.num_bytes - held:,} bytes free",
                found=f"{free:,} bytes",
                remedy="Free space, or choose a target on another disk.",
            )

    def _read_journal(self) -> dict[int, Recorded]:
        """Tasks by number; a line that was cut off by a kill does not count."""
        path, done = self.folder / _JOURNAL, {}
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    reads = tuple(_storage_read(*told) for told in entry["sources"])
                    done[entry["task"]] = Recorded(tuple(entry["checksums"]), reads)
        return done


def _make_shard(path: Path, header: bytes, num_bytes: int) -> None:
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(header)
        file.truncate(num_bytes)


def _storage_read(storage: Sequence, stretches: Sequence[Sequence]) -> StorageRead:
    """What a line of the journal holds of it; TypeError or ValueError where it is none."""
    key, file, *numbers = storage
    found = tuple(Stretch(*map(operator.index, stretch)) for stretch in stretches)
    return StorageRead(Storage(str(key), str(file), *map(operator.index, numbers)), found)


def _write_whole(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def _remove(path: Path) -> None:
    """A folder with what is in it, or a link to one without what is there."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
