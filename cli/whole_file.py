"""Files that a command leaves: found writable before it starts, written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError


def check_writable(path: Path, option: str) -> None:
    """Make the folders above `path`; PeriodicError names `option` where no file can be there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, option, str(error.strerror)) from error
    if path.is_dir():
        raise _unwritable(path, option, "it is a folder")
    if not os.access(path.parent, os.W_OK):
        raise _unwritable(path, option, "its folder cannot be written")


def write_whole(path: Path, text: str, option: str) -> None:
    """Write `text` to `path`, replacing what is there in one step.

    Raises PeriodicError, and leaves `path` as it was, where it cannot be written.
    """
    check_writable(path, option)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise _unwritable(path, option, str(error.strerror)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _unwritable(path: Path, option: str, reason: str) -> PeriodicError:
    return PeriodicError(
        f"{path} cannot be written: {reason}.",
        remedy=f"Give {option} a file in a folder that can be written.",
    )
