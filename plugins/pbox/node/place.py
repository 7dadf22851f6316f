"""The place of an agent on its machine: one folder, one parent control group, one agent."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.node import cgroups
from miles_periodic.plugins.pbox.node.runsc import Runsc
from miles_periodic.plugins.pbox.node.sandbox import Node

_LOOK_SECONDS = 0.1


def place_of(state: Path, program: str, platform: str, group: str) -> Node:
    """The node whose files are below `state` and whose groups are below `group`; makes nothing."""
    runsc = Runsc(program, platform, state / "runsc")
    return Node(runsc, cgroups.find(group), state / "sandboxes")


def take(state: Path, patience_seconds: float = 0.0) -> int:
    """Make the folder and take it for this process alone, as long as the descriptor is open.

    patience_seconds: for whoever looks for abandoned places and holds this one for a moment.
    Raises PeriodicError where another agent has it.
    """
    end = time.monotonic() + patience_seconds
    while (lock := _taken(state)) is None:
        if time.monotonic() >= end:
            raise PeriodicError(
                f"Another agent uses {state}.",
                remedy="Stop it, or give this one another --state-dir and --cgroup.",
            )
        time.sleep(_LOOK_SECONDS)
    return lock


def _taken(state: Path) -> int | None:
    """The lock; None where another process has it, or removes the folder just now."""
    lock = None
    try:
        for folder in (state, state / "sandboxes", state / "runsc"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(state / "lock")):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    if lock is not None:
        os.close(lock)
    return None


def remove_place(state: Path, node: Node) -> None:
    """Remove the parent group, and the folders up to the one around `state`, where they are empty;
    what is in use stays.
    """
    for folder in (node.homes, node.runsc.state):
        _remove_empty(folder)
    node.cgroups.remove()
    (state / "lock").unlink(missing_ok=True)
    _remove_empty(state)
    _remove_empty(state.parent)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # it is not there, or somebody put something into it
