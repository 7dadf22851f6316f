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


def answer_to(error: Exception, is_of_a_file: bool) -> tuple[int, dict[str, Any]]:
    """HTTP's status of one of REFUSALS, and its parts: the problem, and what is known besides.

    is_of_a_file: whether a file was asked for, so that an OSError may be that file's.
    """
    if isinstance(error, OSError):
        if is_of_a_file and error.errno not in _OF_THE_NODE:
            return 422, {"problem": str(error), "errno": error.errno}
        error = _of_the_node(error)
    return _status_of(error), parts_of(error)


def _of_the_node(error: OSError) -> InfrastructureFailure:
    """What went wrong on the node, by no doing of a command's or a file's."""
    return InfrastructureFailure(
        f"The node failed: {error}.",
        remedy="Read the agent's log; see whether somebody removed what is its own.",
    )


def _status_of(error: Exception) -> int:
    if isinstance(error, SandboxGone):
        return 410
    if isinstance(error, InfrastructureFailure):
        return 503
    return 400


def parts_of(error: Exception) -> dict[str, Any]:
    """The problem, and those other parts of an error of ours that are not empty."""
    if isinstance(error, PeriodicError):
        return {"problem": error.problem, **{k: v for k, v in error.parts.items() if v}}
    return {"problem": str(error)}
