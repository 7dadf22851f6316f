"""A chat request through the session server of Miles main, v1 (linear) and v2 (tree)."""

from __future__ import annotations

import inspect
from typing import Any

from miles_periodic.compat.bindings.session_facts import learn
from miles_periodic.compat.bindings.session_turn import (
    Turn,
    add_fields,
    begin_turn,
    current_turn,
    prefix_of,
    refusal,
)


def chat(wrapped, instance, args, kwargs):
    """Symptom: a session's request must know what can only be asked of the servers.

    Trigger: a chat request of a session arrives, v1 or v2. Takes down: the turn (status 502)
    where the servers do not answer; the run where a proof fails. Safe because only the state of
    this task is set before Miles's own method runs; a session that is gone is left to it.
    Upstream: radixark/miles#2783 (salt by weight version, open).
    """
    return _chat(wrapped, instance, args, kwargs)


async def _chat(wrapped, core, args, kwargs):
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    session = core.registry.sessions.get(call.arguments["session_id"])
    if session is not None:
        await _learn(begin_turn(core.args, session), core.backend)
    return await wrapped(*args, **kwargs)


async def _learn(turn: Turn, server: Any) -> None:
    import httpx
    from miles.rollout.session.errors import UpstreamResponseError

    try:
        await learn(turn, server.client, server.backend_url)
    except httpx.HTTPError as error:
        raise UpstreamResponseError(f"the servers did not answer: {error}") from error


def ask_for_new_rows(wrapped, instance, args, kwargs):
    """Symptom: only runs that update in place ask for new rows only, and no request has a salt.

    Trigger: a session's prompt was tokenized, under its lock. Takes down: the run, where two
    features set one field. Safe because the body is the one that is sent and recorded, Miles's
    own field stays, and the first row never lies beyond what the session's records hold.
    Upstream: radixark/miles#2278 (delta in place only), #3307 (retract, open), #2783 (salt, open).
    """
    wrapped(*args, **kwargs)
    turn = current_turn()
    if turn is not None:
        call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        prefix = prefix_of(call["checkpoint_token_ids"], _last_record(turn.session))
        add_fields(turn, prefix, call["request_body"])


def _last_record(session: Any) -> Any | None:
    """The record of the checkpoint: of the last turn, or of the node that a tree stands on."""
    if hasattr(session, "active_leaf"):
        return session.active_leaf.record if session.active_leaf else None
    return session.records[-1] if session.records else None


def check_answer(wrapped, instance, args, kwargs):
    """Symptom: an answer by a server that was not updated yet, or with other rows, is recorded.

    Trigger: the servers answered a chat request. Takes down: the turn (status 502) where a
    feature refuses the answer; the run where its routes are wrong. Safe because Miles validated
    the answer before, and the session is untouched until this returns. Upstream:
    radixark/miles#1807 (version of a recovered server, open).
    """
    from miles.rollout.session.errors import UpstreamResponseError

    completion = wrapped(*args, **kwargs)
    turn = current_turn()
    if turn is not None and turn.request:
        _, choice, _, token_ids = completion
        reason = refusal(turn, choice, len(token_ids))
        if reason is not None:
            raise UpstreamResponseError(reason)
    return completion


def keep_full_assembly(wrapped, instance, args, kwargs):
    """Symptom: Miles joins rows itself in one pause mode, and ends a session at any gap there.

    Trigger: the session server makes its core. Takes down: nothing. Safe because Miles's other
    assembly, which takes all rows of a turn from its sample, is what every other pause mode uses,
    and the rows are in the samples by then. Upstream: radixark/miles#2278, #3307.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    call.arguments["use_addition_r3"] = False
    return wrapped(*call.args, **call.kwargs)
