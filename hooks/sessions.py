"""Hook specs for rollouts whose chat requests go through Miles's session server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import RolloutState, RouteShape, SessionPrefix, SessionTurn


@hookspec
def reaches_into_sessions(arguments: Mapping[str, Any]) -> bool | None:
    """Whether this feature does something to rollouts that go through the session server.

    Called in the driver right after Miles parsed its command line, where that starts a session
    server. `arguments` maps Miles's names to the parsed values. `True` ends the launch, by the
    feature's name, on a tree whose session server cannot be bound; `None` and `False` let the run
    go on there without it. Composed.
    """


@hookspec
def session_request_fields(
    rollout: RolloutState, prefix: SessionPrefix, tokens: Sequence[int], request: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Extra fields of a session's next chat request.

    Called in the session server before each `/v1/chat/completions` request of a session leaves.
    `rollout` is the session's state, one for its whole life, with the weight version that the
    server reported at its first request where a feature wants it; `prefix` is what the session
    holds for the checkpoint that the request builds on; `tokens` are the request's prompt ids;
    `request` is the whole body, to be read only. The fields become part of the session's record
    of the turn. `None` adds nothing. Composed: two features that set one field are an error that
    names both.
    """


@hookspec
def session_response_refusal(
    rollout: RolloutState,
    request: Mapping[str, Any],
    meta_info: Mapping[str, Any],
    num_tokens: int,
    shape: RouteShape | None,
) -> str | None:
    """Why a chat response must not become a turn of its session.

    Called in the session server after each successful response, before anything is recorded.
    `rollout` is the session's state, `request` the body as it left, `meta_info` that of the
    response's choice, `num_tokens` the prompt's and the completion's together, `shape` that of
    one row of routes, or `None` in a run that replays none. A text is answered to the agent with
    status 502, and the session stays as it was, so that the turn can be asked again; `None` takes
    the response. Raises `PeriodicError` where asking again cannot help: the run ends. Composed:
    the first text is the answer.
    """


@hookspec(firstresult=True)
def routed_experts_of_session(
    turns: Sequence[SessionTurn], shape: RouteShape
) -> Sequence[Any] | None:
    """The routes of every turn of a session, made from what the turns' responses carried.

    Called once where a session becomes samples: in the rollout manager (Miles 0.0.2) or in the
    session server (Miles main, there once per leaf of the tree). `turns` are one linear path, in
    order; `shape` is that of one row. Returns for each turn an integer array
    (len(turn.tokens) - 1, num_layers, top_k), or `None` for a turn from which on rows are
    missing: the session's usable part ends before it. `None` as the whole answer leaves the
    decoding to Miles. First result wins; two features that answer are refused when the manager
    is built.
    """
