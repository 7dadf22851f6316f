"""An error as it goes over the wire, with its parts: the client raises it as it was raised here."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, SandboxGone

#: What a request may meet; anything else is a fault of the agent.
REFUSALS = (PeriodicError, ValidationError, ValueError, KeyError, OSError)


def status_of(error: Exception) -> int:
    """HTTP's status of one of REFUSALS."""
    if isinstance(error, SandboxGone):
        return 410
    if isinstance(error, InfrastructureFailure):
        return 503
    return 422 if isinstance(error, OSError) else 400


def parts_of(error: Exception) -> dict[str, Any]:
    """The problem, and what is known of it besides."""
    if isinstance(error, PeriodicError):
        return {"problem": error.problem, **{k: v for k, v in error.parts.items() if v}}
    parts: dict[str, Any] = {"problem": str(error)}
    if isinstance(error, OSError):
        parts["errno"] = error.errno
    return parts
