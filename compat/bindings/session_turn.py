"""The turn of a session that is under way: whose it is, what was asked, and what it may become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.compat.bindings.features import each_answer, merged_answers
from miles_periodic.compat.bindings.route_shape import shape_of
from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RolloutState, SessionPrefix

START = "routed_experts_start_len"

#: Attribute of a session of Miles: its state as the features see it, which ends with the session.
_STATE = "miles_periodic_state"

_current: ContextVar[Turn | None] = ContextVar("miles_periodic_turn", default=None)


@dataclass(slots=True)
class Turn:
    """One chat request between its arrival and its record.

    arguments: Miles's parsed command line. session: Miles's own object.
    fields: what the features added to the request. request: the body as it left.
    """

    arguments: Any
    session: Any
    fields: dict[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rollout(self) -> RolloutState:
        """The session's state, made at its first turn."""
        state = getattr(self.session, _STATE, None)
        if state is None:
            state = RolloutState()
            setattr(self.session, _STATE, state)
        return state


def begin_turn(arguments: Any, session: Any) -> Turn:
    """The turn that this task serves from now on; a request has a task, and a context, of its own.

    A session may be looked up for other reasons, too: nothing happens to those.
    """
    turn = Turn(arguments, session)
    _current.set(turn)
    return turn


def current_turn() -> Turn | None:
    """The turn that this task serves, or None outside one."""
    return _current.get()


def prefix_of(tokens: Sequence[int], record: Any | None) -> SessionPrefix:
    """What a session holds for a checkpoint of `tokens`, whose last turn is `record`.

    A turn asked from the first row that was not held, so that its own end is the session's; a
    turn without routes leaves the session with the rows before it.
    """
    if record is None:
        return SessionPrefix()
    meta_info = record.response["choices"][0]["meta_info"]
    start = record.request.get(START, 0)
    came = meta_info.get("routed_experts") is not None
    return SessionPrefix(tokens, len(tokens) - 1 if came else start)


def add_fields(turn: Turn, prefix: SessionPrefix, request: dict[str, Any]) -> None:
    """Put the features' fields into a chat request, and keep both for the answer."""
    with ends_the_run("session/fields"):
        turn.fields = merged_answers(
            "session_request_fields",
            rollout=turn.rollout,
            prefix=prefix,
            tokens=request["input_ids"],
            request=request,
        )
    request.update(turn.fields)
    turn.request = request


def refusal(turn: Turn, choice: Mapping[str, Any], num_completion_tokens: int) -> str | None:
    """Why an answer must not be recorded, by the first feature that says so."""
    replays = getattr(turn.arguments, "use_rollout_routing_replay", False)
    with ends_the_run("session/answer"):
        answers = each_answer(
            "session_response_refusal",
            rollout=turn.rollout,
            request=turn.request,
            meta_info=choice["meta_info"],
            num_tokens=len(turn.request["input_ids"]) + num_completion_tokens,
            shape=shape_of(turn.arguments) if replays else None,
        )
        return next((f"{slug}: {text}" for slug, text in answers), None)


@contextmanager
def ends_the_run(name: str) -> Iterator[None]:
    """Let a PeriodicError end the run: an agent would take it for its own failure, and go on."""
    try:
        yield
    except PeriodicError as error:
        member().report_failure(name, str(error))
        raise
