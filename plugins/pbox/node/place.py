"""The place of an agent on its machine: one folder, one parent control group, one agent."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.node import cgroups
from miles_periodic.plugins.pbox.node.runsc import Runsc
from miles_periodic.plugins.pbox.node.sandbox import Node


def place_of(state: Path, program: str, platform: str, group: str) -> Node:
    """The node whose files are below `state` and whose groups are below `group`; makes nothing."""
    runsc = Runsc(program, platform, state / "runsc")
    return Node(runsc, cgroups.find(group), state / "sandboxes")


def take(state: Path) -> int:
    """Make the folder and take it for this process alone, as long as the descriptor is open.

    Raises PeriodicError where another agent has it.
    """
    for folder in (state, state / "sandboxes", state / "runsc"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise PeriodicError(
            f"Another agent uses {state}.",
            remedy="Stop it, or give this one another --state-dir and --cgroup.",
        ) from error
    return lock


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
