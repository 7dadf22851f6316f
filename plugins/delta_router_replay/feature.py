"""The hooks of delta-router-replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from miles_periodic.hooks import Feature, PeriodicError, RolloutState, hookimpl
from miles_periodic.hooks.values import RouteShape, ServerGroup, ServerProof, proof_salt
from miles_periodic.plugins.delta_router_replay import halves, wire
from miles_periodic.plugins.delta_router_replay.payload import (
    RouteRowsError,
    num_row_bytes,
    num_rows,
)
from miles_periodic.plugins.delta_router_replay.route_rows import RouteRows
from miles_periodic.plugins.delta_router_replay.settings import DeltaRouterReplaySettings

SLUG = "delta-router-replay"


@dataclass(slots=True)
class _Held:
    """What one rollout holds: rows, and the tokens that they belong to."""

    rows: RouteRows | None = None
    tokens: list[int] = field(default_factory=list)
    asked_from: int = 0


class DeltaRouterReplay(Feature):
    """Each turn asks only for the routes of rows that the client does not hold."""

    slug = SLUG
    why = "Routes of a multi-turn rollout cross the wire once, not once per turn."
    settings_model = DeltaRouterReplaySettings
    pull_requests = ("sglang#24851", "sglang#31219", "miles#2278", "miles#3307")
    exit = "Miles asks for a delta on every rollout path, in every pause mode."

    def __init__(self, settings: DeltaRouterReplaySettings | None = None) -> None:
        super().__init__(settings)
        self._replays = False

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self._replays = replays = bool(arguments.get("use_rollout_routing_replay"))
        if replays and arguments.get("use_session_server"):
            raise PeriodicError(
                "Miles's session server asks for all routes on every turn, beside this feature.",
                feature=SLUG,
                expected="rollouts that call /generate",
                found="--use-session-server",
                remedy=f"Take the feature out with -{SLUG}, or roll out without session servers.",
            )
        return None

    @hookimpl
    def server_arguments(self, servers: ServerGroup) -> Mapping[str, Any] | None:
        if servers.role == "prefill" and self._replays:
            _refuse_half_routes(servers, self.settings.join_halves)
        return None

    @hookimpl
    def routed_experts_of_pair(
        self,
        prefill: Mapping[str, Any],
        decode: Mapping[str, Any],
        request: Mapping[str, Any],
        request_id: str,
    ) -> str | None:
        num_prompt_tokens = len(request["input_ids"])
        meta = decode.get("meta_info", {})
        try:
            return halves.join(
                prefill.get("meta_info", {}).get("routed_experts"),
                meta.get("routed_experts"),
                start=request.get("routed_experts_start_len") or 0,
                num_prompt_tokens=num_prompt_tokens,
                num_tokens=num_prompt_tokens + meta.get("completion_tokens", 0),
                request_id=request_id,
            )
        except RouteRowsError as error:
            raise _refusal(error) from error

    @hookimpl
    def server_proofs(self, request: Mapping[str, Any]) -> Sequence[ServerProof] | None:
        replays = request.get("return_routed_experts")
        return (_round_trip(),) if replays and self.settings.prove_round_trip else None

    @hookimpl
    def generate_request_fields(
        self, rollout: RolloutState, tokens: Sequence[int], request: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        if not request.get("return_routed_experts"):
            return None
        held = rollout.memory.setdefault(SLUG, _Held())
        held.asked_from = _keep_common_prefix(held, tokens)
        return {"routed_experts_start_len": held.asked_from} if held.asked_from else None

    @hookimpl
    def routed_experts_of_response(
        self,
        rollout: RolloutState,
        tokens: Sequence[int],
        payload: Any,
        shape: RouteShape,
        request_id: str,
    ) -> np.ndarray | None:
        held = rollout.memory.setdefault(SLUG, _Held())
        if held.rows is None:
            held.rows = RouteRows(
                shape.num_layers,
                shape.top_k,
                shape.num_experts,
                max_constant_run=self.settings.max_constant_run,
            )
        try:
            _append(held, tokens, payload, request_id)
        except RouteRowsError as error:
            raise _refusal(error) from error
        held.tokens = list(tokens)
        return held.rows.array()

    @hookimpl
    def routed_experts_on_the_wire(
        self, rows: np.ndarray, first_row: int, num_experts: int
    ) -> np.ndarray | None:
        if not self.settings.compact_wire:
            return None
        try:
            return wire.encode(rows, first_row, num_experts)
        except wire.WireError:
            # As int32 the bad rows reach the client, which refuses them by request and row.
            return None

    @hookimpl
    def routed_experts_for_training(self, rows: np.ndarray) -> np.ndarray | None:
        return None if rows.dtype == np.int32 else rows.astype(np.int32)


def _refuse_half_routes(prefill: ServerGroup, joins: bool) -> None:
    """Raise PeriodicError where a run with prefill servers could not have a prompt's routes."""
    if not prefill.prefill_returns_routes:
        raise PeriodicError(
            "This SGLang's prefill servers do not answer with the routes of a prompt.",
            feature=SLUG,
            target="sglang.srt.disaggregation.prefill",
            expected="routed experts collected when a prompt's KV was sent",
            found="nothing that collects them",
            remedy="Use SGLang 0.5.22 or later, drop --use-rollout-routing-replay, or roll out "
            "without prefill servers.",
        )
    if not joins:
        raise PeriodicError(
            "Routers hand on the decode server's routes only, which are none of the prompt's.",
            feature=SLUG,
            expected=f"{SLUG}.join_halves=true",
            found=f"{SLUG}.join_halves=false",
            remedy=f"Set {SLUG}.join_halves=true, or drop --use-rollout-routing-replay.",
        )


def _refusal(error: RouteRowsError) -> PeriodicError:
    return PeriodicError(
        f"A response's routes are refused: {error}.",
        feature=SLUG,
        target="/generate, meta_info.routed_experts",
        remedy=f"Run `miles plan` on the servers' nodes, or take the feature out: -{SLUG}.",
    )


def _append(held: _Held, tokens: Sequence[int], payload: Any, request_id: str) -> None:
    """Append a response's rows, and demand that they end one before the last token."""
    wanted = len(tokens) - 1 - held.asked_from
    num_rows = _payload_rows(payload, held.rows)
    if num_rows is not None and num_rows != wanted:
        raise RouteRowsError(
            f"{num_rows} rows came where {wanted} were asked for; the server ignored "
            "routed_experts_start_len or lost rows",
            request_id=request_id,
            first_row=held.asked_from,
            end_row=held.asked_from + num_rows,
        )
    held.rows.append(held.asked_from, payload, request_id=request_id)


def _payload_rows(payload: Any, rows: RouteRows) -> int | None:
    """How many rows a base64 text holds, by its length alone; None for other payloads."""
    if not isinstance(payload, str):
        return None
    return num_rows(payload, rows.num_layers, rows.top_k)


def _keep_common_prefix(held: _Held, tokens: Sequence[int]) -> int:
    """How many rows the next request need not ask for; rows of rewritten history are dropped.

    A row depends on its token and on all before it, so that rows stay valid exactly as far as
    the request's tokens equal those that the rows were routed for.
    """
    if held.rows is None:
        return 0
    num_rows = len(held.rows)
    if list(tokens[:num_rows]) != held.tokens[:num_rows]:
        pairs = zip(tokens, held.tokens, strict=False)
        num_rows = next((i for i, (new, old) in enumerate(pairs) if new != old), len(tokens))
    num_rows = min(num_rows, len(held.rows), len(tokens))
    held.rows.truncate(num_rows)
    return num_rows


#: Token ids that every vocabulary has; what they mean does not matter to the proof.
_PROOF_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
_PROOF_START = 5


def _round_trip() -> ServerProof:
    request = {
        "input_ids": list(_PROOF_TOKENS),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "return_routed_experts": True,
        "extra_key": proof_salt(),
    }
    delta = {**request, "routed_experts_start_len": _PROOF_START}
    return ServerProof("routes come back through the router", (request, delta), _check_round_trip)


def _check_round_trip(responses: Sequence[Mapping[str, Any]]) -> None:
    full, delta = (r.get("meta_info", {}).get("routed_experts") for r in responses)
    if full is None:
        raise PeriodicError(
            "The router or server dropped the routed experts of a request that asked for them.",
            feature=SLUG,
            target="/generate through the run's router",
            expected="meta_info.routed_experts",
            found="a response without it",
            remedy="Add --use-miles-router; the Rust router of pip drops return_routed_experts.",
        )
    rows = len(_PROOF_TOKENS)
    if delta is None or num_row_bytes(delta) * rows != num_row_bytes(full) * (rows - _PROOF_START):
        raise PeriodicError(
            "The server answered a delta of routes with something else.",
            feature=SLUG,
            target="/generate, routed_experts_start_len",
            expected=f"{rows - _PROOF_START} of {rows} rows",
            found="nothing"
            if delta is None
            else f"{num_row_bytes(delta)} of {num_row_bytes(full)} bytes",
            remedy="Run `miles plan` on the servers' nodes; their SGLang ignores the field.",
        )
