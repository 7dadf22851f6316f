"""The rows of one rollout, by the history of tokens that each of them depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from miles_periodic.hooks.common_prefix import common_prefix
from miles_periodic.hooks.values import EarlierTurns, RouteAnswer, RouteShape
from miles_periodic.plugins.delta_router_replay.payload import (
    RouteRowsError,
    decode_answer,
    wrong_count,
)
from miles_periodic.plugins.delta_router_replay.route_rows import RouteRows

#: Most histories that are held at once; a request that goes on from an older one is refused.
MAX_BRANCHES = 8


@dataclass(slots=True)
class _Branch:
    """Rows, and the tokens that they were routed for; row i depends on tokens [0, i]."""

    rows: RouteRows
    tokens: list[int] = field(default_factory=list)

    def shared(self, tokens: Sequence[int]) -> int:
        """How many of the rows are those of `tokens` too."""
        return min(len(self.rows), common_prefix(self.tokens, tokens))


class Trajectory:
    """What one rollout holds, over all its turns.

    Mostly one branch, which only grows. A request that rewrites history takes a new branch from
    the first changed token on, and the old one lasts as long as requests are under way that may
    have asked for a delta to it: a rollout may send several at once.
    """

    def __init__(self, *, max_constant_run: int | None = None) -> None:
        self.max_constant_run = max_constant_run
        self._branches: list[_Branch] = []
        self._num_under_way = 0

    def resume(self, earlier: EarlierTurns) -> None:
        """Hold what an interrupted rollout had; its rows are those that sampled its tokens.

        Raises RouteRowsError where the routes cannot be those of the tokens.
        """
        branch = _Branch(self._no_rows(earlier.shape), list(earlier.tokens))
        routes = earlier.routes[: len(branch.tokens)]
        branch.rows.append(0, routes, request_id="of an earlier turn")
        self._branches = [branch]

    def ask(self, tokens: Sequence[int]) -> int:
        """The row from which the next request asks; `answer` has to follow.

        Never beyond the last token's row: it samples the first new token, also where it is held.
        Never 1: a server that ignores the start then sends one row too many, which is also what
        a server sends that forwarded the last token.
        """
        self._num_under_way += 1
        held = max((branch.shared(tokens) for branch in self._branches), default=0)
        start = min(held, len(tokens) - 1)
        return start if start > 1 else 0

    def answer(self, tokens: Sequence[int], answer: RouteAnswer, shape: RouteShape) -> np.ndarray:
        """All rows of `tokens` after a response: (len(tokens) - 1, num_layers, top_k), compact.

        Fewer where an aborted request brought fewer: its gap ends the rows that can be used, and
        the next request asks from there. Raises RouteRowsError, and holds what it held, where a
        response is no routes or brings another number of rows than it was asked for.
        """
        self._num_under_way = max(self._num_under_way - 1, 0)
        rows = _checked_rows(answer, len(tokens) - 1 - answer.start, shape)
        branch = self._branch_for(tokens, answer, shape)
        branch.rows.append(
            answer.start,
            rows,
            weight_version=answer.weight_version,
            request_id=answer.request_id,
        )
        branch.tokens = list(tokens)
        self._keep(branch)
        return branch.rows.array()[: len(tokens) - 1]

    def _branch_for(self, tokens: Sequence[int], answer: RouteAnswer, shape: RouteShape) -> _Branch:
        """The branch that the answer goes on from, or a new one that shares its first rows.

        Rows from the answer's start on are those that sampled its tokens. Another request may
        have sampled the same ones meanwhile; its rows are of another pass.
        """
        best = max(self._branches, key=lambda b: b.shared(tokens), default=None)
        if best is None and not answer.start:
            return _Branch(self._no_rows(shape))
        shared = best.shared(tokens) if best else 0
        if shared < answer.start:
            raise RouteRowsError(
                f"{shared} rows of its tokens are held, so that a gap would be left",
                request_id=answer.request_id,
                first_row=answer.start,
                end_row=answer.start,
            )
        kept = answer.start or min(shared, 1)
        return best if kept == len(best.rows) else _Branch(best.rows.fork(kept))

    def _keep(self, branch: _Branch) -> None:
        """Hold a branch, and the others while a request is under way that may go on from one."""
        others = [b for b in self._branches if b is not branch] if self._num_under_way else []
        self._branches = [*others, branch][-MAX_BRANCHES:]

    def _no_rows(self, shape: RouteShape) -> RouteRows:
        return RouteRows(
            shape.num_layers,
            shape.top_k,
            shape.num_experts,
            max_constant_run=self.max_constant_run,
        )


def _checked_rows(answer: RouteAnswer, wanted: int, shape: RouteShape) -> np.ndarray:
    """The rows that came, of the number that was asked for.

    One more may come: a server that forwarded the last token, too, has its row. An aborted
    request may bring fewer, or none.
    """
    if answer.payload is None:
        rows = np.empty((0, shape.num_layers, shape.top_k), np.uint8)
    else:
        rows = decode_answer(
            answer.payload,
            shape.num_layers,
            shape.top_k,
            first_row=answer.start,
            request_id=answer.request_id,
        )
    fewest = 0 if answer.is_aborted else max(wanted, 0)
    if not fewest <= len(rows) <= max(wanted, 0) + 1:
        raise wrong_count(len(rows), max(wanted, 0), answer.start, answer.request_id)
    return rows


def rows_as_sent(answer: RouteAnswer, shape: RouteShape) -> np.ndarray:
    """All rows of a request whose tokens only the server counts, checked."""
    rows = RouteRows(shape.num_layers, shape.top_k, shape.num_experts)
    rows.append(0, answer.payload, request_id=answer.request_id)
    return rows.array()
