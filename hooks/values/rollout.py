"""What rollouts and sessions are to the features, and what became of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.hooks.values.routes import RouteShape


@dataclass(slots=True)
class RolloutState:
    """One rollout (one trajectory of turns) as the features see it, for as long as it lasts.

    weight_version: the version of the weights that the server reported when the rollout started,
        or None where nothing asked for it.
    has_started: whether its first request was made.
    earlier: what an interrupted rollout that goes on here had already, or None for a new one.
    memory: feature slug to whatever that feature keeps for the rollout.
    rollout_id: names the trajectory among all of a run; the same where Miles resumes it later.
    """

    weight_version: str | None = None
    has_started: bool = False
    earlier: EarlierTurns | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    rollout_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Cancel:
    """A rollout is to end now, and nothing of it is to be trained on.

    reason: one clause for the log, such as `it started 3 weight versions ago`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What became of the rollouts of one step, by the time it is logged.

    start_weight_versions: for each sample that is trained on, the version under which its rollout
        started; None where nothing asked for it.
    weight_version: the newest version that any server has reported, or None.
    num_cancelled: rollouts that were ended in flight since the last step.
    num_dropped: samples of finished rollouts that were taken out since the last step.
    """

    start_weight_versions: tuple[str | None, ...]
    weight_version: str | None
    num_cancelled: int = 0
    num_dropped: int = 0


@dataclass(frozen=True, slots=True)
class SessionPrefix:
    """What a session holds for the checkpoint that its next chat request builds on.

    tokens: of the checkpoint, prompt first; empty before the first turn.
    num_rows: rows of routes, from row 0 on and without a gap, that its records carry for them.
    """

    tokens: Sequence[int] = ()
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One recorded turn of a session.

    tokens: the request's prompt ids and the completion's.
    start: the first row of routes that the request asked for.
    payload: the response's `routed_experts`, or None where it carried none.
    request_id: names the response in errors.
    weight_version: the version that the server reported with the response, or None.
    """

    tokens: Sequence[int]
    start: int
    payload: Any
    request_id: str = ""
    weight_version: str | None = None


@dataclass(frozen=True, slots=True)
class EarlierTurns:
    """What a rollout had before it was interrupted: its tokens, and the routes that sampled them.

    tokens: prompt and response so far. routes: integer array (rows, num_layers, top_k), one row
    per token but the last. shape: of one row.
    """

    tokens: Sequence[int]
    routes: Any
    shape: RouteShape
