"""The driver asks whether every expected binding is in place, before the first step is paid for."""

from __future__ import annotations

import inspect
from typing import Any

from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import RollCallError


def call(wrapped, instance, args, kwargs):
    """Symptom: a process that should carry a binding never applied it, and says nothing.

    Trigger: Miles's rollout manager and trainers are up. Takes down: the run, naming binding and
    role. Safe because it only reads the launcher's record after Miles's own call returned.
    Upstream: Miles has no point at which extensions are checked.
    """
    return _call(wrapped, args, kwargs)


async def _call(wrapped, args, kwargs):
    models = await wrapped(*args, **kwargs)
    arguments = inspect.signature(wrapped).bind(*args, **kwargs).arguments["args"]
    missing = member().muster(_roles_of(arguments))
    if missing:
        member().report_failure("launch/muster", "; ".join(missing))
        raise RollCallError(
            "Bindings are missing: " + "; ".join(missing) + ".",
            remedy="Install miles-periodic in every node's Python, and run `miles plan` there.",
        )
    return models


def _roles_of(arguments: Any) -> tuple[str, ...]:
    """The roles that this run has, of those that not every run has."""
    return ("session-server",) if getattr(arguments, "use_session_server", False) else ()
