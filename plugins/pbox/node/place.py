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

#: What lies beside the folder of an agent that was started for one job.
PLACE_FILES = ("socket", "tokens", "certificate.pem", "key.pem", "trusted.pem")
SWEEPING = b"sweeping"
#: More than a sweep takes that has a few hundred sandboxes to end.
SWEEP_SECONDS = 60.0
#: An agent that was just killed, and a sweep that is about to say that it is one.
END_SECONDS = 1.0
LOOK_SECONDS = 0.05


def place_of(state: Path, program: str, platform: str, group: str) -> Node:
    """The node whose files are below `state` and whose groups are below `group`; makes nothing."""
    runsc = Runsc(program, platform, state / "runsc")
    return Node(runsc, cgroups.find(group), state / "sandboxes")


def take(state: Path) -> int:
    """Make the folder and take it for this process alone, as long as the descriptor is open.

    An agent's end is followed by a sweep, which holds the folder as well: that is waited for.
    Raises PeriodicError where another agent has it.
    """
    started = time.monotonic()
    while (lock := _taken(state)) is None:
        patience = SWEEP_SECONDS if _is_swept(state) else END_SECONDS
        if time.monotonic() - started > patience:
            raise PeriodicError(
                f"Another agent uses {state}.",
                remedy="Stop it, or give this one another --state-dir and --cgroup.",
            )
        time.sleep(LOOK_SECONDS)
    os.ftruncate(lock, 0)
    return lock


def take_to_sweep(state: Path) -> int | None:
    """Take the folder as `take` does, to sweep it; none where an agent has it, which swept it."""
    lock = _taken(state)
    if lock is not None:
        os.pwrite(lock, SWEEPING, 0)
    return lock


def _taken(state: Path) -> int | None:
    """The locked descriptor of the lock file that is there now; none where another has it."""
    while True:
        for folder in (state, state / "sandboxes", state / "runsc"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # whoever swept it removed the folder just now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if _is_still_there(lock, state):
            return lock
        os.close(lock)  # the one before removed the file: a lock on it excludes nobody


def _is_still_there(lock: int, state: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(state / "lock"))
    except FileNotFoundError:
        return False


def _is_swept(state: Path) -> bool:
    """Whether what has the folder only sweeps it, or has just left it."""
    try:
        return (state / "lock").read_bytes() == SWEEPING
    except FileNotFoundError:
        return True


def group_of(place: Path) -> str:
    """The control group above those of the sandboxes of an agent that was started for one job."""
    return f"pbox-{place.name}"


def remove_files(state: Path, group: str) -> None:
    """Remove what lies beside `state` where that is a place: `NAME/state` with group `pbox-NAME`.

    An agent that was set up otherwise has files there that are not of one run.
    """
    if group == group_of(state.parent):
        for name in PLACE_FILES:
            (state.parent / name).unlink(missing_ok=True)


def remove_place(state: Path, node: Node) -> None:
    """Remove the parent group, and the folders up to the one around `state`, where they are empty;
    what is in use stays. For whoever has taken the place.
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
