"""A finished request's routes in the form that features choose, instead of int32 values."""

from __future__ import annotations

import sys
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.server_routes import FIELD
from miles_periodic.compat.boot import member

#: What models call their number of routed experts.
_NUM_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def encode(wrapped, instance, args, kwargs):
    """Symptom: an expert id of one byte crosses three processes and the network as four, in base64.

    Trigger: a request that asked for routes finished. Takes down: nothing; where the number of
    experts is not stated or a row does not fit, int32 goes out as before. Safe because every hop
    behind the collector passes one tensor of any shape and dtype on as its bytes. Upstream:
    sgl-project/sglang#31219, open.
    """
    import torch

    outcome = wrapped(*args, **kwargs)
    request = args[0] if args else kwargs["req"]
    num_experts = _num_experts(instance.model_config)
    if request.routed_experts is None or num_experts is None:
        return outcome
    blob = manager().hook.routed_experts_on_the_wire(
        rows=request.routed_experts.numpy(),
        first_row=getattr(request, FIELD, 0),
        num_experts=num_experts,
    )
    if blob is not None:
        request.routed_experts = torch.from_numpy(blob)
    return outcome


def _num_experts(model_config: Any) -> int | None:
    """The number of routed experts that the model's configuration states, or None."""
    stated = [getattr(model_config.hf_text_config, name, None) for name in _NUM_EXPERTS]
    numbers = [number for number in stated if isinstance(number, int) and number > 0]
    if not numbers:
        _say_once(
            "routes are sent as int32: the model's configuration states no number of experts "
            f"as {', '.join(_NUM_EXPERTS)}"
        )
    return max(numbers, default=None)


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        current = member()
        if current is not None:
            current.notice(text)
        else:
            print(f"miles-periodic: {text}", file=sys.stderr, flush=True)
