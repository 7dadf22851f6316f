"""An error as it goes over the wire, with its parts: the client raises it as it was raised here."""

from __future__ import annotations

import errno
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, SandboxGone

#: What a request may meet; anything else is a fault of the agent.
REFUSALS = (PeriodicError, ValueError, KeyError, OSError)
#: Errors that are no fault of the path that was asked for.
_OF_THE_NODE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def status_of(error: Exception) -> int:
    """HTTP's status of one of REFUSALS."""
    if isinstance(error, SandboxGone):
        return 410
    if isinstance(error, InfrastructureFailure):
        return 503
    if isinstance(error, OSError):
        return 503 if error.errno in _OF_THE_NODE else 422
    return 400


def parts_of(error: Exception) -> dict[str, Any]:
    """The problem, and what is known of it besides."""
    if isinstance(error, PeriodicError):
        return {"problem": error.problem, **{k: v for k, v in error.parts.items() if v}}
    parts: dict[str, Any] = {"problem": str(error)}
    if isinstance(error, OSError):
        parts["errno"] = error.errno
    return parts
