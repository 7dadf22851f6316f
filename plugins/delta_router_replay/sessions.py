"""Routes of a session: which row to ask from, whether a response has them, and all turns joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from miles_periodic.hooks.common_prefix import common_prefix
from miles_periodic.hooks.values import RouteShape, SessionPrefix, SessionTurn
from miles_periodic.plugins.delta_router_replay.payload import decode_answer, num_rows, wrong_count
from miles_periodic.plugins.delta_router_replay.route_rows import RouteRows


def next_row(prefix: SessionPrefix, tokens: Sequence[int]) -> int:
    """The first row that the session does not hold for a prompt of `tokens`.

    A row depends on its token and on all before it: held rows count as far as the prompt repeats
    the tokens that they were routed for.
    """
    return min(prefix.num_rows, common_prefix(prefix.tokens, tokens))


def check_count(
    payload: Any, start: int, num_tokens: int, shape: RouteShape, request_id: str
) -> None:
    """Raise RouteRowsError where a payload has not one row per token from `start` but the last.

    Only lengths are looked at: the rows are decoded where the session becomes samples, and what
    cannot be told here is said there.
    """
    wanted = max(num_tokens - 1 - start, 0)
    found = num_rows(payload, shape.num_layers, shape.top_k) if isinstance(payload, str) else None
    if found not in (wanted, None):
        raise wrong_count(found, wanted, start, request_id)


def joined(
    turns: Sequence[SessionTurn], shape: RouteShape, *, max_constant_run: int | None = None
) -> list[np.ndarray | None]:
    """For each turn the rows of all its tokens but the last, (rows, layers, top_k), compact.

    A row that an earlier turn brought is never replaced by a later one. From the first turn on
    that came without routes, the answers are None: what later responses say about its tokens is
    another pass than the one that sampled them. Raises RouteRowsError with request id and rows.
    """
    rows = RouteRows(
        shape.num_layers, shape.top_k, shape.num_experts, max_constant_run=max_constant_run
    )
    answers: list[np.ndarray | None] = []
    held: Sequence[int] = ()
    for turn in turns:
        if turn.payload is None:
            break
        rows.truncate(min(len(rows), common_prefix(held, turn.tokens)))
        _append(rows, turn, shape)
        held = turn.tokens
        answers.append(rows.array())
    return answers + [None] * (len(turns) - len(answers))


def _append(rows: RouteRows, turn: SessionTurn, shape: RouteShape) -> None:
    found = decode_answer(
        turn.payload,
        shape.num_layers,
        shape.top_k,
        first_row=turn.start,
        request_id=turn.request_id,
    )
    wanted = max(len(turn.tokens) - 1 - turn.start, 0)
    if len(found) != wanted:
        raise wrong_count(len(found), wanted, turn.start, turn.request_id)
    rows.append(turn.start, found, request_id=turn.request_id, weight_version=turn.weight_version)
