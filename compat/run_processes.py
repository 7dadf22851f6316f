"""The processes of one run on this node, found by the run's id in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from miles_periodic.compat.manifest import RUN_ID

GRACE_SECONDS = 3.0
#: From SIGKILL to the end of the last process: the kernel frees gigabytes first.
KILL_SECONDS = 30.0


def processes_of(run_id: str) -> list[int]:
    """Process ids whose environment carries `run_id`, without this process."""
    mark = f"{RUN_ID}={run_id}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0") and not _is_zombie(name):
                    found.append(int(name))
    return found


def _is_zombie(pid: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[:1] == [b"Z"]
    return True


def end_processes(run_id: str, grace_seconds: float = GRACE_SECONDS) -> list[int]:
    """End every process of a run: SIGTERM, then SIGKILL; returns those that are left (none)."""
    for number, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_SECONDS)):
        for pid in processes_of(run_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + patience
        while processes_of(run_id) and time.monotonic() < end:
            time.sleep(0.05)
    return processes_of(run_id)
