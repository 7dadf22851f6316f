"""Where a rehearsal works: one folder, one lock, and nothing left behind on any exit."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError

LOCK_NAME = "miles-periodic-rehearsal.lock"
#: Checkpoints, logs and Ray's session of two runs of the tiny model.
NEEDED_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Workspace:
    """folder: of both runs. ray: for Ray's sockets, whose paths hold 107 bytes at most."""

    folder: Path
    ray: Path


@contextmanager
def workspace(keep: Path | None) -> Iterator[Workspace]:
    """A folder for both runs: `keep`, which stays, or a temporary one, which goes.

    Raises PeriodicError where another rehearsal is running, the folder cannot be used or the disk
    is too full. A lock whose owner died is no obstacle: the kernel released it.
    """
    with (
        _only_rehearsal(),
        tempfile.TemporaryDirectory(prefix="mp-", ignore_cleanup_errors=True) as temporary,
    ):
        folder = _made(keep) if keep is not None else Path(temporary) / "runs"
        folder.mkdir(exist_ok=True)
        _check_space(folder)
        yield Workspace(folder, Path(temporary) / "ray")


@contextmanager
def _only_rehearsal() -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"{os.getuid()}-{LOCK_NAME}"
    with open(path, "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise PeriodicError(
                f"Another rehearsal is running on this machine (process {owner}).",
                target=str(path),
                remedy=f"Wait for it, or run `kill {owner}`.",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _made(keep: Path) -> Path:
    try:
        keep.mkdir(parents=True, exist_ok=True)
        for name in ("model", "off", "on"):
            shutil.rmtree(keep / name, ignore_errors=True)
    except OSError as error:
        raise PeriodicError(
            f"The folder {keep} cannot be made: {error.strerror}.",
            remedy="Give --work-dir a folder that can be written.",
        ) from error
    return keep.resolve()


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise PeriodicError(
            "The disk is too full for a rehearsal.",
            target=str(folder),
            expected=f"{NEEDED_BYTES >> 20} MiB free",
            found=f"{free >> 20} MiB free",
            remedy="Free some space, or give --work-dir a folder on another disk.",
        )
