"""What a rollout stands on beside its servers, such as a sandbox, and whether that failed under it.

Whoever plays a rollout opens a ground; whoever lends it something finds the ground of the rollout
that is being played, says there how to take it back, and when it fails. A failure is noted also
where an agent's own code passes over the exception: it must never end as a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.hooks.errors import PeriodicError


@dataclass(frozen=True, slots=True)
class GroundFailure:
    """error: what failed. may_pass: whether another try of the same sample may go well."""

    error: Exception
    may_pass: bool


@dataclass(slots=True)
class RolloutGround:
    """Of one try at one sample. lent: by name, for whoever lends one thing once."""

    failures: list[GroundFailure] = field(default_factory=list)
    lent: dict[str, Any] = field(default_factory=dict)
    _closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def fail(self, error: Exception, may_pass: bool = True) -> None:
        """Note that what was lent failed: nothing of this try says anything of the sample."""
        self.failures.append(GroundFailure(error, may_pass))

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called when the try ends, or is ended."""
        self._closers.append(close)

    async def close(self) -> None:
        """Take back all that was lent; what fails to go is noted by whoever lent it."""
        closers, self._closers = self._closers, []
        await asyncio.gather(*(close() for close in closers))


_current: ContextVar[RolloutGround | None] = ContextVar("rollout_ground", default=None)


def current_ground() -> RolloutGround:
    """The ground of the rollout that is being played here. Raises PeriodicError outside of one."""
    ground = _current.get()
    if ground is None:
        raise PeriodicError(
            "No rollout is being played here that could hold what is lent to it.",
            remedy="Pass --custom-generate-function-path "
            "miles_periodic.compat.tool_rollouts.agent, or .multi_turn.",
        )
    return ground


@contextlib.asynccontextmanager
async def rollout_ground() -> AsyncIterator[RolloutGround]:
    """A ground for the block, and for every task that is started in it."""
    ground = RolloutGround()
    token = _current.set(ground)
    try:
        yield ground
    finally:
        _current.reset(token)
        await ground.close()
