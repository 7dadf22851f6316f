"""Where one rollout begins and ends: its state follows the asyncio task that generates it."""

from __future__ import annotations

from contextvars import ContextVar

from miles_periodic.hooks.values import RolloutState

_current: ContextVar[RolloutState | None] = ContextVar("miles_periodic_rollout", default=None)


def current_rollout() -> RolloutState | None:
    """The state of the rollout that this task generates, or None outside one."""
    return _current.get()


def enter(wrapped, instance, args, kwargs):
    """Symptom: Miles's request helpers see token lists, not the trajectory they belong to.

    Trigger: `generate_and_rm` runs one sample, over all its turns, in a task of its own. Takes
    down: nothing; it only opens and closes a context variable. Safe because tasks copy their
    context, so that neighbours never share a state. Upstream: none.
    """
    return _within_scope(wrapped, args, kwargs)


async def _within_scope(wrapped, args, kwargs):
    token = _current.set(RolloutState())
    try:
        return await wrapped(*args, **kwargs)
    finally:
        _current.reset(token)
