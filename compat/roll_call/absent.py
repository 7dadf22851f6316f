"""Processes of a run on this node that never answered the roll call, as the launcher sees them.

A Python in which the boot line did not run (started with -S, from another environment, or with a
broken install) cannot report that it is missing; its place in the process table shows it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from miles_periodic.compat.roll_call.roles import role_of, title_of
from miles_periodic.compat.roll_call.roll import Failure
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.run_processes import processes_of

LOOK_INTERVAL_SECONDS = 2.0
#: Titles are set by Pythons that have started, and hello was said before that.
GRACE_SECONDS = 8.0
#: The driver is known by its number, before its Python is read from a busy shared disk.
DRIVER_GRACE_SECONDS = 60.0


def watch_for_absent(roll_call: RollCallServer, is_over: Callable[[], bool]) -> threading.Thread:
    """Until `is_over`: fail the roll call where a process of a role that has bindings is absent."""
    watch = threading.Thread(target=_watch, args=(roll_call, is_over), daemon=True)
    watch.start()
    return watch


def _watch(roll_call: RollCallServer, is_over: Callable[[], bool]) -> None:
    first_seen: dict[int, float] = {}
    while not is_over() and not roll_call.failed.wait(LOOK_INTERVAL_SECONDS):
        now = time.monotonic()
        for pid, title in absent_processes(roll_call):
            is_driver = pid == roll_call.roll.driver_pid
            grace_seconds = DRIVER_GRACE_SECONDS if is_driver else GRACE_SECONDS
            if now - first_seen.setdefault(pid, now) > grace_seconds:
                _fail(roll_call, pid, title)
                return


def absent_processes(roll_call: RollCallServer) -> list[tuple[int, str]]:
    """(pid, title) of this node's processes in a role that has bindings and that said no hello."""
    roles = {role for binding in roll_call.roll.bindings for role in binding.processes}
    present = {entry.pid for entry in roll_call.roll.entries if entry.is_local}
    titles = {pid: title_of(pid) for pid in processes_of(roll_call.run_id) if pid not in present}
    return [(pid, title) for pid, title in titles.items() if _role(roll_call, pid, title) in roles]


def _role(roll_call: RollCallServer, pid: int, title: str) -> str:
    return "driver" if pid == roll_call.roll.driver_pid else role_of(title)


def _fail(roll_call: RollCallServer, pid: int, title: str) -> None:
    role = _role(roll_call, pid, title)
    names = [b.name for b in roll_call.roll.bindings if role in b.processes]
    process = f"{role} (pid {pid} on {os.uname().nodename}: {title[:60]})"
    reason = "it never answered the roll call; install miles-periodic in the Python that it runs"
    roll_call.fail(Failure(", ".join(names), process, reason))
