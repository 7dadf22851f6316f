"""Hook specs that the processes which talk to the rollout servers call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.proofs import ServerProof
from miles_periodic.hooks.values import (
    Cancel,
    RolloutState,
    RolloutStep,
    RouteAnswer,
    RouteShape,
)


@hookspec
def server_proofs(request: Mapping[str, Any]) -> Sequence[ServerProof] | None:
    """What the real router and server must show before a request relies on them.

    Called in the rollout manager before each `/generate` request of a rollout; `request` is that
    request as Miles built it. Each proof is a few small requests and a check over their
    responses; it runs once per server address and name, and a failed check ends the run. `None`
    proves nothing. Composed.
    """


@hookspec
def generate_request_fields(
    rollout: RolloutState, tokens: Sequence[int], request: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Extra fields of the next `/generate` request of a rollout.

    Called in the rollout manager before each turn's request leaves. `rollout` is the state of
    the trajectory; `tokens` are the request's token ids, prompt first (empty for a text prompt);
    `request` is the whole request as Miles built it, to be read only. `None` adds nothing.
    Composed: every feature's fields are merged, and two features that set one field are an error
    that names both.
    """


@hookspec(firstresult=True)
def routed_experts_of_response(
    rollout: RolloutState, tokens: Sequence[int], answer: RouteAnswer, shape: RouteShape
) -> Any | None:
    """The routes of all of a rollout's rows, made from what one response brought.

    Called in the rollout manager after each response to a request that asked for routes, also
    where none came. `rollout` is the state of the trajectory; `tokens` are its token ids with the
    new ones included; `answer` is what the response brought, and which row it starts at; `shape`
    is that of one row. Returns an integer array (rows, num_layers, top_k) of len(tokens) - 1
    rows, or fewer where an aborted request left a gap: the tokens behind it are cut off. `None`
    leaves the decoding to Miles. First result wins; two features that answer are refused when
    the manager is built.
    """


@hookspec(firstresult=True)
def routed_experts_of_pair(
    prefill: Mapping[str, Any],
    decode: Mapping[str, Any],
    request: Mapping[str, Any],
    request_id: str,
) -> str | None:
    """The routes of one request that a prefill and a decode server answered together.

    Called in the rollout manager for each request for routes under prefill/decode
    disaggregation, before the response is anybody's. `prefill` and `decode` are the two servers'
    responses, `request` is the body that both got, `request_id` names it in errors. Returns the
    text that a single server would have answered as `routed_experts`, or `None` to leave the
    decode server's; raises where a half is missing. First result wins; two features that answer
    are refused when the manager is built.
    """


@hookspec(firstresult=True)
def wants_weight_version(rollout: RolloutState) -> bool | None:
    """Whether `rollout.weight_version` must be known when a rollout starts.

    Called in the rollout manager once per rollout, before its first request; `rollout` is still
    empty. `None` means that this feature does not need it. First result wins.
    """


@hookspec
def rollout_response(
    rollout: RolloutState,
    tokens: Sequence[int],
    request: Mapping[str, Any],
    response: Mapping[str, Any],
) -> None:
    """Sees what a server answered to one `/generate` request of a rollout.

    Called in the rollout manager after each turn. `rollout` is the state of the trajectory;
    `tokens` are the request's token ids (empty for a text prompt); `request` and `response` are
    the whole request as Miles built it and the whole answer, to be read only. Returns nothing.
    """


@hookspec(firstresult=True)
def rollout_verdict(
    rollout: RolloutState, weight_version: str | None, finished: bool
) -> Cancel | None:
    """Whether a rollout may go on, and whether a finished one may be trained on.

    Called in the rollout manager: for a rollout in flight before each request, after each answer,
    and whenever a server reports another version; with `finished` true when its group is complete
    and again when it is handed to training. `rollout` is the state of the trajectory;
    `weight_version` is the newest version that any server reported, or None. A `Cancel` ends it:
    its requests are aborted on the servers, and nothing of its group is trained on. `None` keeps
    it. First result wins.
    """


@hookspec
def rollout_step_metrics(step: RolloutStep) -> Mapping[str, float] | None:
    """Numbers to log with a rollout step, by their full names (`FEATURE/…`).

    Called in the rollout manager once per rollout step, right before Miles logs it. `step` says
    what became of its rollouts. `None` adds nothing. Composed: two features that log one name are
    an error that names both.
    """
