"""Several files rewritten at once: all or none, also where the process is killed in the middle.

New texts are written beside, into a folder of the checkout's root; then a journal says that the
files are being exchanged, and each is: the old one is kept as a hard link until all are verified.
Whoever comes next and finds a journal puts every old file back.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError

FOLDER = ".miles-periodic-patches"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One file: relative to the root, its bytes now, and those that it gets."""

    file: str
    before: bytes
    after: bytes


@contextmanager
def alone_in(root: Path) -> Iterator[int]:
    """Nobody else patches below `root` meanwhile; yields how many files had to be put back first.

    Raises PeriodicError where another command is at work there.
    """
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PeriodicError(
                f"Another command patches {root} now.",
                tree=str(root),
                remedy="Wait until it has ended.",
            ) from error
        yield put_back(root)
    finally:
        os.close(handle)


def rewrite(root: Path, rewrites: list[Rewrite]) -> None:
    """Give every file its new bytes, and read them again.

    Raises PeriodicError, with every file as it was, where one of them cannot be written.
    """
    if not rewrites:
        return
    try:
        _write_beside(root, rewrites)
        _begin(root, rewrites)
        for number, each in enumerate(rewrites):
            _exchange(root, number, each)
        _verify(root, rewrites)
        _journal(root).unlink()
    except BaseException as error:
        put_back(root)
        if isinstance(error, OSError):
            raise _not_written(root, error) from error
        raise
    shutil.rmtree(root / FOLDER)


def put_back(root: Path) -> int:
    """Undo what was interrupted below `root`, and say how many files were put back."""
    folder = root / FOLDER
    if not folder.is_dir():
        return 0
    restored = 0
    if _journal(root).is_file():
        listed = json.loads(_journal(root).read_text(encoding="utf-8"))
        for number, part in enumerate(listed):
            restored += _put_back_one(root, number, part)
    _journal(root).unlink(missing_ok=True)
    shutil.rmtree(folder)
    return restored


def _write_beside(root: Path, rewrites: list[Rewrite]) -> None:
    for name in ("new", "old"):
        (root / FOLDER / name).mkdir(parents=True)
    for number, each in enumerate(rewrites):
        path = root / each.file
        if path.is_symlink() or path.read_bytes() != each.before:
            raise _changed(root, each.file)
        beside = root / FOLDER / "new" / str(number)
        _write(beside, each.after)
        shutil.copymode(path, beside)


def _begin(root: Path, rewrites: list[Rewrite]) -> None:
    listed = [
        {"file": each.file, "before": _digest(each.before), "after": _digest(each.after)}
        for each in rewrites
    ]
    unfinished = root / FOLDER / "journal.new"
    _write(unfinished, json.dumps(listed).encode())
    os.replace(unfinished, _journal(root))


def _exchange(root: Path, number: int, each: Rewrite) -> None:
    path, kept = root / each.file, root / FOLDER / "old" / str(number)
    try:
        os.link(path, kept)
    except OSError:  # a file system without hard links
        shutil.copy2(path, kept)
    os.replace(root / FOLDER / "new" / str(number), path)


def _verify(root: Path, rewrites: list[Rewrite]) -> None:
    for each in rewrites:
        if (root / each.file).read_bytes() != each.after:
            raise OSError(f"{each.file} reads otherwise than it was written")


def _put_back_one(root: Path, number: int, part: Mapping[str, str]) -> int:
    path, kept = root / part["file"], root / FOLDER / "old" / str(number)
    if not kept.is_file() or _digest(kept.read_bytes()) != part["before"]:
        return 0  # not exchanged yet: the old file stands where it stood
    now = _digest(path.read_bytes()) if path.is_file() else ""
    if now not in ("", part["before"], part["after"]):
        raise PeriodicError(
            f"{part['file']} was changed after an interrupted command had patched it.",
            tree=str(root),
            target=part["file"],
            expected="the file as it was before or as it was patched",
            found="another text",
            remedy=f"Compare it with {kept}, keep what you need, and remove {root / FOLDER}.",
        )
    os.replace(kept, path)
    return int(now != part["before"])


def _journal(root: Path) -> Path:
    return root / FOLDER / "journal.json"


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _changed(root: Path, file: str) -> PeriodicError:
    return PeriodicError(
        f"{file} is not the file that was looked at.",
        tree=str(root),
        target=file,
        expected="a regular file that nobody changes meanwhile",
        found="a symbolic link" if (root / file).is_symlink() else "another text",
        remedy="Patch the folder that the link leads to."
        if (root / file).is_symlink()
        else "Run the command again.",
    )


def _not_written(root: Path, error: OSError) -> PeriodicError:
    return PeriodicError(
        f"{root} could not be written, and every file is as it was: {error}.",
        tree=str(root),
        expected="a folder that can be written, with room",
        found=str(error),
        remedy="Make room, or give write access, and run the command again.",
    )
