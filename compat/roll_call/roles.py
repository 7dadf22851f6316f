"""A process's title, and its role in a Miles run.

Ray titles an actor's process `ray::Class`, SGLang its children `sglang::part`; the titles are the
only thing about a process that every node shows alike. A command that only mentions one of them,
such as `tail -f miles-router.log`, has no part in the run.
"""

from __future__ import annotations

import re

_ROLES = (
    (r"^miles-session-server", "session-server"),
    (r"^ray::RolloutManager", "rollout-manager"),
    (r"^ray::(Megatron|FSDP)TrainRayActor", "trainer"),
    (r"^ray::SGLangEngine", "engine"),
    (r"^ray::(IDLE|\S*InfoActor|Lock|\S+)", "ray-worker"),
    (r"^miles-router", "router"),
    (r"^sglang::scheduler", "scheduler"),
    (r"^sglang::detokenizer", "detokenizer"),
    (r"^sglang::data_parallel_controller", "data-parallel-controller"),
    (r"^sglang::", "server"),
    (r"resource_tracker", "resource-tracker"),
    (r"multiprocessing.spawn|multiprocessing-fork", "spawned"),
    (r"ray/dashboard|ray/_private|/ray/", "ray-daemon"),
)


#: Roles that compute something of the run; the others only serve them.
ROLES_OF_A_RUN = (
    "driver",
    "rollout-manager",
    "trainer",
    "engine",
    "router",
    "session-server",
    "scheduler",
    "detokenizer",
    "data-parallel-controller",
    "server",
)

#: Roles that a run may do without; the muster asks for them where the driver says that it has them.
ROLES_OF_SOME_RUNS = ("session-server",)


MAX_TITLE_BYTES = 512


def title_of(pid: int) -> str:
    """The title of a process as this node's process table shows it; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            shown = file.read(MAX_TITLE_BYTES)
    except OSError:
        return ""
    return shown.replace(b"\0", b" ").decode(errors="replace").strip()


def role_of(title: str) -> str:
    """The role that a title shows, or `process` where it shows none."""
    for pattern, role in _ROLES:
        if re.search(pattern, title):
            return role
    return "process"
