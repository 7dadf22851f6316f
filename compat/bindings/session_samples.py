"""From a session's records to samples: each turn's rows, joined from what all turns carried."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.route_shape import shape_of
from miles_periodic.compat.bindings.session_turn import START, ends_the_run
from miles_periodic.hooks.values import SessionTurn

_KEY = "routed_experts"


def assemble(wrapped, instance, args, kwargs):
    """Symptom: each turn's routes are decoded as those of all its tokens; the last turn's win.

    Trigger: a session's records become samples. Takes down: the run, where a turn's rows are
    refused. Safe because Miles makes the samples from the same records without their routes, and
    each then gets its rows, cut to its tokens; from a turn without routes on there is no sample,
    as nothing says how its tokens were routed. Upstream: radixark/miles#3307 (open), #1672.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    records = call.arguments["records"]
    turns = [_turn(record) for record in records]
    if all(turn.payload is None for turn in turns):
        return wrapped(*args, **kwargs)
    with ends_the_run("session/assemble"):
        rows = manager().hook.routed_experts_of_session(
            turns=turns, shape=shape_of(call.arguments["args"])
        )
    if rows is None:
        return wrapped(*args, **kwargs)
    call.arguments["records"] = [_without_routes(record) for record in records]
    return _with_rows(wrapped(*call.args, **call.kwargs), rows)


def _turn(record: Any) -> SessionTurn:
    meta_info = record.response["choices"][0]["meta_info"]
    completion = [item[1] for item in meta_info["output_token_logprobs"]]
    return SessionTurn(
        tokens=[*record.request["input_ids"], *completion],
        start=record.request.get(START, 0),
        payload=meta_info.get(_KEY),
        request_id=str(meta_info.get("id", "")),
        weight_version=meta_info.get("weight_version"),
    )


def _without_routes(record: Any) -> Any:
    """A copy of a record that carries no routes; everything else is shared with it."""
    first, *others = record.response["choices"]
    bare = {key: value for key, value in first["meta_info"].items() if key != _KEY}
    choices = [{**first, "meta_info": bare}, *others]
    return record.model_copy(update={"response": {**record.response, "choices": choices}})


def _with_rows(samples: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
    whole = []
    for sample, its_rows in zip(samples, rows, strict=True):
        if its_rows is None:
            break
        sample.rollout_routed_experts = its_rows[: max(len(sample.tokens) - 1, 0)]
        whole.append(sample)
    return whole


def widen(wrapped, instance, args, kwargs):
    """Symptom: the session server's reply takes routes as int32 only.

    Trigger: samples leave the session server of Miles main. Takes down: nothing. Safe because
    int32 is what Miles's own decoder yields, made once per session. Upstream:
    sgl-project/sglang#31219 (compact wire dtype, open).
    """
    samples = inspect.signature(wrapped).bind(*args, **kwargs).arguments["samples"]
    for sample in samples:
        if sample.rollout_routed_experts is not None:
            sample.rollout_routed_experts = np.asarray(sample.rollout_routed_experts, np.int32)
    return wrapped(*args, **kwargs)
