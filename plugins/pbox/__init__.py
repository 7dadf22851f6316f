"""pbox: sandboxes on the nodes that a job already has, and gone with the job.

limits    what one sandbox may use
outcomes  how a command ends, and what is no end of a command
cpu_lists lists of CPUs, read and written
cpu_split two disjoint sets of a job's CPUs
wire      what client and agent say to each other beside JSON
node/     one machine: mounts, control groups, runsc, process 1, proofs, sweeping
images/   root file systems: from Debian's packages, or folders
agent/    the HTTP server of a node, its jobs and what lives by them
client/   `async with connect() as host: async with host.sandbox() as box`, and without async
rollout/  sandboxes as the tools of a rollout

    from miles_periodic.plugins import pbox

    async with pbox.connect() as host, host.sandbox() as box:
        result = await box.exec(["python3", "-c", "print(1)"], timeout_seconds=10)

The names below need the extra `pbox` (aiohttp, cryptography, sh), and are imported when they are
asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "Box": "client.box",
    "Exited": "outcomes",
    "Host": "client.host",
    "InfrastructureFailure": "outcomes",
    "Killed": "outcomes",
    "Limits": "limits",
    "OutOfMemory": "outcomes",
    "OutputTruncated": "outcomes",
    "Result": "outcomes",
    "SandboxGone": "outcomes",
    "TimedOut": "outcomes",
    "connect": "client.host",
    "connect_blocking": "client.blocking",
    "rollout_box": "rollout.box",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"{__name__} has no {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
