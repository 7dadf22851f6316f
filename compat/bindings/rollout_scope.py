"""Where one rollout begins and ends: its state follows the asyncio task that generates it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from miles_periodic.hooks.values import RolloutState

_current: ContextVar[RolloutState | None] = ContextVar("miles_periodic_rollout", default=None)
_arguments: ContextVar[Mapping[str, Any] | None] = ContextVar("miles_periodic_args", default=None)


def current_rollout() -> RolloutState | None:
    """The state of the rollout that this task generates, or None outside one."""
    return _current.get()


def current_arguments() -> Mapping[str, Any]:
    """Miles's arguments as the rollout of this task has them; empty outside one."""
    return _arguments.get() or {}


def enter(wrapped, instance, args, kwargs):
    """Symptom: Miles's request helpers see token lists, not the trajectory they belong to.

    Trigger: `generate_and_rm` runs one sample, over all its turns, in a task of its own. Takes
    down: nothing; it only opens and closes context variables. Safe because tasks copy their
    context, so that neighbours never share a state. Upstream: none.
    """
    return _within_scope(wrapped, args, kwargs)


async def _within_scope(wrapped, args, kwargs):
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    token = _current.set(_state_of(call))
    arguments_token = _arguments.set(_arguments_of(call))
    try:
        return await wrapped(*args, **kwargs)
    finally:
        _arguments.reset(arguments_token)
        _current.reset(token)


def _state_of(call: Mapping[str, Any]) -> RolloutState:
    """A fresh state; a training sample that Miles resumes has the id that it had before."""
    sample = call.get("sample")
    first = sample[0] if isinstance(sample, list) and sample else sample
    index = getattr(first, "index", None)
    if index is None or call.get("evaluation"):
        return RolloutState()
    return RolloutState(rollout_id=f"sample-{index}")


def _arguments_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    given = call.get("args", getattr(call.get("state"), "args", None))
    return vars(given) if hasattr(given, "__dict__") else {}
