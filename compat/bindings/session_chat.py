"""A chat request through the session server of Miles 0.0.2, which builds it inside a closure."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
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

_CHAT = "v1/chat/completions"


def begin(wrapped, instance, args, kwargs):
    """Symptom: the server's proxy sees a request's bytes, not the session that they belong to.

    Trigger: a route of the session server looks a session up. Takes down: nothing; it only sets a
    context variable. Safe because every HTTP request runs in a task of its own, and only the chat
    route goes on to the proxy. Upstream: radixark/miles#2278 made this a core with methods.
    """
    session = wrapped(*args, **kwargs)
    begin_turn(instance.args, session)
    return session


def proxy(wrapped, instance, args, kwargs):
    """Symptom: each chat request asks for the routes of the whole session, and carries no salt.

    Trigger: a turn of a session is sent on to the servers. Takes down: the turn (status 502)
    where a feature refuses the answer; the run where a proof or the answer's routes are wrong.
    Safe because other requests pass untouched, the session is read before the first await, when
    it still is as the request was built on, and Miles checks the answer as before. Upstream:
    radixark/miles#2278 (delta in place only), #3307 (retract), #2783 (salt).
    """
    return _proxy(wrapped, instance, args, kwargs)


async def _proxy(wrapped, server, args, kwargs):
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    turn = current_turn()
    if turn is None or call.arguments["path"] != _CHAT:
        return await wrapped(*args, **kwargs)
    session = turn.session
    prefix = prefix_of(session.token_ids, session.records[-1] if session.records else None)
    request = json.loads(call.arguments["body"])
    await _learn(turn, server)
    add_fields(turn, prefix, request)
    call.arguments["body"] = json.dumps(request).encode()
    result = await wrapped(*call.args, **call.kwargs)
    _check(turn, result)
    return result


async def _learn(turn: Turn, server: Any) -> None:
    import httpx
    from miles.rollout.session.session_errors import UpstreamResponseError

    try:
        await learn(turn, server.client, server.backend_url)
    except httpx.HTTPError as error:
        raise UpstreamResponseError(f"the servers did not answer: {error}") from error


def _check(turn: Turn, result: Mapping[str, Any]) -> None:
    """Raise Miles's error for a bad answer where a feature refuses it."""
    from miles.rollout.session.session_errors import UpstreamResponseError

    if result["status_code"] != 200:
        return
    choice = json.loads(result["response_body"])["choices"][0]
    meta_info = choice.get("meta_info")
    if not isinstance(meta_info, dict):  # Miles says so itself.
        return
    reason = refusal(turn, choice, len(meta_info.get("output_token_logprobs") or ()))
    if reason is not None:
        raise UpstreamResponseError(reason)


def record(wrapped, instance, args, kwargs):
    """Symptom: the record of a turn holds the request as it was before its fields were added.

    Trigger: a turn was answered and is recorded. Takes down: nothing. Safe because the fields are
    those that left with this very turn, and Miles reads none of them. Upstream: none.
    """
    turn = current_turn()
    if turn is not None:
        entry = inspect.signature(wrapped).bind(*args, **kwargs).arguments["record"]
        entry.request.update(turn.fields)
    return wrapped(*args, **kwargs)
