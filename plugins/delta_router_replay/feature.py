"""The hooks of delta-router-replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from miles_periodic.hooks import Feature, PeriodicError, RolloutState, hookimpl
from miles_periodic.hooks.proofs import ServerProof, proof_request, proof_salt
from miles_periodic.hooks.values import (
    MEDIA_FIELDS,
    RankShare,
    RouteAnswer,
    RouteShape,
    ServerGroup,
    SessionPrefix,
    SessionTurn,
)
from miles_periodic.plugins.delta_router_replay import halves, sessions, wire
from miles_periodic.plugins.delta_router_replay.pairs import refuse_half_routes
from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError, num_row_bytes
from miles_periodic.plugins.delta_router_replay.rank_share import own_routes, share_bytes
from miles_periodic.plugins.delta_router_replay.settings import SLUG, DeltaRouterReplaySettings
from miles_periodic.plugins.delta_router_replay.trajectory import Trajectory, rows_as_sent

_CHAT = "/v1/chat/completions, meta_info.routed_experts"


class DeltaRouterReplay(Feature):
    """Each turn asks only for the routes of rows that the client does not hold."""

    slug = SLUG
    why = "Routes of a multi-turn rollout cross the wire once, not once per turn."
    settings_model = DeltaRouterReplaySettings
    pull_requests = (
        *("sglang#24851", "sglang#31219", "sglang#24001", "sglang#39633", "sglang#26860"),
        *("sglang#12162", "sglang#17434", "sglang#22911", "sglang#24263", "sglang#24403"),
        *("sglang#24550", "sglang#26123", "sglang#26980", "sglang#36404"),
        *("sglang#22916", "sglang#23885"),
        *("miles#2278", "miles#3307", "miles#575", "miles#1672", "miles#2235"),
        *("miles#861", "miles#893", "miles#1069"),
        *("megatron#2101", "megatron#4256"),
    )
    exit = "Miles asks for a delta on every rollout path, in every pause mode."
    _step_bytes = 0

    def __init__(self, settings: DeltaRouterReplaySettings | None = None) -> None:
        super().__init__(settings)
        self._replays = False

    @hookimpl
    def reaches_into_sessions(self, arguments: Mapping[str, Any]) -> bool | None:
        return bool(arguments.get("use_rollout_routing_replay"))

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self._replays = replays = bool(arguments.get("use_rollout_routing_replay"))
        chunk = arguments.get("sglang_chunked_prefill_size")
        if replays and chunk is not None and chunk <= 0:
            raise PeriodicError(
                "Prefills of any length overrun the servers' buffer for captured routes.",
                feature=SLUG,
                expected="a bound on the tokens of one prefill",
                found=f"--sglang-chunked-prefill-size {chunk}",
                remedy="Set --sglang-chunked-prefill-size to the most tokens that one forward may "
                "prefill, such as 8192.",
            )
        return None

    @hookimpl
    def server_arguments(self, servers: ServerGroup) -> Mapping[str, Any] | None:
        if servers.role == "prefill" and self._replays:
            refuse_half_routes(servers, self.settings.join_halves)
        return None

    @hookimpl
    def routed_experts_of_pair(
        self,
        prefill: Mapping[str, Any],
        decode: Mapping[str, Any],
        request: Mapping[str, Any],
        request_id: str,
    ) -> str | None:
        with _named_refusal("/generate, meta_info.routed_experts"):
            return halves.joined(prefill, decode, request, request_id)

    @hookimpl
    def server_proofs(self, request: Mapping[str, Any]) -> Sequence[ServerProof] | None:
        replays = request.get("return_routed_experts")
        return (_round_trip(),) if replays and self.settings.prove_round_trip else None

    @hookimpl
    def generate_request_fields(
        self, rollout: RolloutState, tokens: Sequence[int], request: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        has_media = any(request.get(field) for field in MEDIA_FIELDS)
        if not request.get("return_routed_experts") or not tokens or has_media:
            return None
        start = self._trajectory(rollout).ask(tokens)
        return {"routed_experts_start_len": start} if start else None

    @hookimpl
    def routed_experts_of_response(
        self, rollout: RolloutState, tokens: Sequence[int], answer: RouteAnswer, shape: RouteShape
    ) -> np.ndarray | None:
        with _named_refusal("/generate, meta_info.routed_experts"):
            if answer.only_server_counts:
                return rows_as_sent(answer, shape) if answer.payload is not None else None
            return self._trajectory(rollout).answer(tokens, answer, shape)

    def _trajectory(self, rollout: RolloutState) -> Trajectory:
        held = rollout.memory.get(SLUG)
        if held is None:
            held = Trajectory(max_constant_run=self.settings.max_constant_run)
            if rollout.earlier is not None:
                with _named_refusal("the routes of an interrupted sample"):
                    held.resume(rollout.earlier)
            rollout.memory[SLUG] = held
        return held

    @hookimpl
    def session_request_fields(
        self,
        rollout: RolloutState,
        prefix: SessionPrefix,
        tokens: Sequence[int],
        request: Mapping[str, Any],
    ) -> Mapping[str, Any] | None:
        asks = request.get("return_routed_experts")
        start = sessions.next_row(prefix, tokens) if asks else 0
        return {"routed_experts_start_len": start} if start else None

    @hookimpl
    def session_response_refusal(
        self,
        rollout: RolloutState,
        request: Mapping[str, Any],
        meta_info: Mapping[str, Any],
        num_tokens: int,
        shape: RouteShape | None,
    ) -> str | None:
        payload = meta_info.get("routed_experts")
        if payload is not None and shape is not None:
            with _named_refusal(_CHAT):
                start = request.get("routed_experts_start_len", 0)
                sessions.check_count(payload, start, num_tokens, shape, str(meta_info.get("id")))
        return None

    @hookimpl
    def routed_experts_of_session(
        self, turns: Sequence[SessionTurn], shape: RouteShape
    ) -> Sequence[np.ndarray | None] | None:
        with _named_refusal(_CHAT):
            return sessions.joined(turns, shape, max_constant_run=self.settings.max_constant_run)

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
    def routed_experts_for_training(
        self, routes: Sequence[np.ndarray], share: RankShare, shape: RouteShape
    ) -> np.ndarray | None:
        with _named_refusal("the routes of a train rank"):
            self._count(share, shape)
            return own_routes(routes, share, shape)

    def _count(self, share: RankShare, shape: RouteShape) -> None:
        """Count a micro-batch's bytes to those of its step; PeriodicError above the limit."""
        if share.micro_batch == 0:
            self._step_bytes = 0
        self._step_bytes += share_bytes(share, shape)
        limit = self.settings.max_rank_bytes
        if limit is not None and self._step_bytes > limit:
            raise PeriodicError(
                f"Rank {share.rank} would hold {self._step_bytes} bytes of routes by "
                f"micro-batch {share.micro_batch} of a step.",
                feature=SLUG,
                expected=f"at most max_rank_bytes = {limit}",
                found=f"{len(share.layers)} layers of {len(share.rows)} positions in this one",
                remedy="Take more data, pipeline or context parallel ranks, or a higher "
                f"{SLUG}.max_rank_bytes.",
            )


@contextmanager
def _named_refusal(target: str) -> Iterator[None]:
    """RouteRowsError as the error that a user sees."""
    try:
        yield
    except RouteRowsError as error:
        raise PeriodicError(
            f"Routes are refused: {error}.",
            feature=SLUG,
            target=target,
            remedy=f"Run `miles plan` on the servers' nodes, or take the feature out: -{SLUG}.",
        ) from error


#: Token ids that every vocabulary has; what they mean does not matter to the proof.
_PROOF_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
_PROOF_START = 5


def _round_trip() -> ServerProof:
    request = {**proof_request(_PROOF_TOKENS, proof_salt()), "return_routed_experts": True}
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
