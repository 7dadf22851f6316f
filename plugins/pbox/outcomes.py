"""How a command ended: a closed union, and apart from it the failure of the ground it stood on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from miles_periodic.hooks.errors import PeriodicError


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended by itself. code: its status, 0 to 255."""

    code: int


@dataclass(frozen=True, slots=True)
class Killed:
    """A signal ended the command. by: what is known of it, such as `num_processes`; or empty."""

    signal: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The command ran past its time limit; it and all that it had started were killed."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The sandbox reached its memory limit; it is gone with all that ran in it."""

    limit_bytes: int


@dataclass(frozen=True, slots=True)
class OutputTruncated:
    """The command wrote more than its output limit and was killed; the first bytes are kept."""

    limit_bytes: int


Outcome = Exited | Killed | TimedOut | OutOfMemory | OutputTruncated
OUTCOMES: dict[str, type] = {
    "exited": Exited,
    "killed": Killed,
    "timed_out": TimedOut,
    "out_of_memory": OutOfMemory,
    "output_truncated": OutputTruncated,
}
_NAMES = {kind: name for name, kind in OUTCOMES.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """A command's end and what it wrote until then.

    sandbox_lives: whether the sandbox can run another command. seconds: wall time on the node.
    """

    outcome: Outcome
    stdout: bytes
    stderr: bytes
    seconds: float
    sandbox_lives: bool

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with status 0."""
        return self.outcome == Exited(0)


class InfrastructureFailure(PeriodicError):
    """The node, the agent, the sandbox or the way to it failed: this says nothing of the command.

    A rollout that meets it has no reward: its sample leaves the group, it is no 0.
    """

    status = 1


class SandboxGone(InfrastructureFailure):
    """The sandbox had ended before the command was started."""


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """`{"outcome": name, …fields}`."""
    return {"outcome": _NAMES[type(outcome)], **asdict(outcome)}


def outcome_from_json(values: dict[str, Any]) -> Outcome:
    """The reverse of `outcome_to_json`; fields of other concern are left out by the caller.

    Raises InfrastructureFailure on a name or fields that this version does not know.
    """
    fields = dict(values)
    try:
        return OUTCOMES[fields.pop("outcome")](**fields)
    except (KeyError, TypeError) as error:
        raise InfrastructureFailure(
            f"The agent answered with an outcome that is not known here: {values!r}.",
            remedy="Install the same miles-periodic on the agent's node and here.",
        ) from error
