"""The routes of a response, and their dtype in the trainer."""

from __future__ import annotations

import inspect

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.rollout_scope import current_rollout
from miles_periodic.hooks.values import RouteShape

_KEY = "rollout_routed_experts"


def decode(wrapped, instance, args, kwargs):
    """Symptom: every turn's response is decoded as the routes of the whole sample.

    Trigger: `update_sample_from_response` after each turn. Takes down: the rollout, where a
    payload is refused (the error names request id and rows). Safe because without a payload,
    outside a rollout and where no feature answers, Miles's own decoder runs. Upstream:
    radixark/miles has the delta only in its session server (#2278).
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    arguments, output, sample = call["args"], call["output"], call["sample"]
    payload = output["meta_info"].get(call["key"])
    rollout = current_rollout()
    if payload is None or rollout is None:
        return wrapped(*args, **kwargs)
    shape = RouteShape(arguments.num_layers, arguments.moe_router_topk, arguments.num_experts)
    rows = manager().hook.routed_experts_of_response(
        rollout=rollout,
        tokens=sample.tokens,
        payload=payload,
        shape=shape,
        request_id=str(output["meta_info"].get("id", "")),
    )
    return wrapped(*args, **kwargs) if rows is None else rows


def widen(wrapped, instance, args, kwargs):
    """Symptom: the trainer pads routes with -1 and gathers by them; compact dtypes can do neither.

    Trigger: a train rank fetched its shard. Takes down: nothing else. Safe because int32 is what
    Miles's own decoder yields, so that the trainer sees equal values in the dtype it expects.
    Upstream: sgl-project/sglang#31219 (compact wire dtype, open).
    """
    data = wrapped(*args, **kwargs)
    if _KEY in data:
        data[_KEY] = [_widened(rows) for rows in data[_KEY]]
    return data


def _widened(rows):
    import torch

    wide = manager().hook.routed_experts_for_training(rows=rows.numpy())
    return rows if wide is None else torch.from_numpy(wide)
