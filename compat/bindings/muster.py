"""The driver asks whether every expected binding is in place, before the first step is paid for."""

from __future__ import annotations

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
    missing = member().muster()
    if missing:
        member().report_failure("launch/muster", "; ".join(missing))
        raise RollCallError(
            "Bindings are missing: " + "; ".join(missing) + ".",
            remedy="Install miles-periodic in every node's Python, and run `miles plan` there.",
        )
    return models
