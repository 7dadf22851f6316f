"""The routes of a response: assembled where it arrives, handed to whoever decodes it."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.rollout_scope import current_arguments, current_taken
from miles_periodic.compat.bindings.route_shape import shape_of
from miles_periodic.hooks.values import MEDIA_FIELDS, RolloutState, RouteAnswer

_KEY = "routed_experts"


@dataclass(frozen=True, slots=True)
class AssembledRoutes:
    """All rows of a trajectory, where Miles expects the base64 text of a response.

    Our bindings on Miles's decoders take `rows` as they are. Anybody else's code decodes it as it
    decodes the text, `b64decode(value.encode("ascii"))`, and gets the same rows as int32.
    """

    rows: Any

    def encode(self, encoding: str = "ascii") -> bytes:
        return base64.b64encode(self.rows.astype("<i4").tobytes())


def with_routes(rollout: RolloutState, request: Mapping[str, Any], response: Any) -> Any:
    """A response whose routes are those of the whole trajectory, where a feature assembles them.

    request: as it was sent. Called for each response of a rollout, before Miles sees it.
    """
    meta = response.get("meta_info") if isinstance(response, Mapping) else None
    if not request.get("return_routed_experts") or meta is None:
        return response
    tokens = [*token_ids(request), *_new_tokens(meta)]
    rows = manager().hook.routed_experts_of_response(
        rollout=rollout,
        tokens=tokens,
        answer=_answer(request, meta),
        shape=shape_of(current_arguments()),
    )
    if rows is None:
        return response
    taken = current_taken()
    if taken is None:
        return {**response, "meta_info": {**meta, _KEY: AssembledRoutes(rows)}}
    taken.rows = rows
    return {**response, "meta_info": {k: v for k, v in meta.items() if k != _KEY}}


def token_ids(request: Mapping[str, Any]) -> Sequence[int]:
    """The request's one prompt as token ids; empty for a text, or for several prompts at once."""
    tokens = request.get("input_ids")
    return () if not tokens or isinstance(tokens[0], list | tuple) else tokens


def _new_tokens(meta: Mapping[str, Any]) -> list[int]:
    return [item[1] for item in meta.get("output_token_logprobs") or ()]


def _answer(request: Mapping[str, Any], meta: Mapping[str, Any]) -> RouteAnswer:
    version = meta.get("weight_version")
    return RouteAnswer(
        payload=meta.get(_KEY),
        start=request.get("routed_experts_start_len", 0),
        request_id=str(meta.get("id", "")),
        weight_version=None if version is None else str(version),
        is_aborted=(meta.get("finish_reason") or {}).get("type") == "abort",
        only_server_counts=not token_ids(request)
        or any(request.get(field) for field in MEDIA_FIELDS),
    )


def decode(wrapped, instance, args, kwargs):
    """Symptom: every turn's response is decoded as the routes of the whole sample, as int32.

    Trigger: a response's routes go to its sample. Takes down: nothing. Safe because only what we
    assembled is taken as it is; any other payload goes to Miles's own decoder. Upstream:
    radixark/miles has the delta only in its session server (#2278).
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    held = call["output"]["meta_info"].get(call.get("key", _KEY))
    return held.rows if isinstance(held, AssembledRoutes) else wrapped(*args, **kwargs)
