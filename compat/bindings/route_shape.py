"""The shape of one token's routes, from what Miles knows about its model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RouteShape

_NUM_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_TOP_K = ("num_experts_per_tok", "moe_topk", "num_experts_per_token")


def shape_of(arguments: Any) -> RouteShape:
    """From Megatron's arguments, or from the checkpoint where Miles trains with FSDP.

    Raises PeriodicError where neither says how many experts there are.
    """
    top_k = getattr(arguments, "moe_router_topk", None)
    num_experts = getattr(arguments, "num_experts", None)
    if not (top_k and num_experts):
        top_k, num_experts = _experts_of_checkpoint(arguments.hf_checkpoint)
    return RouteShape(arguments.num_layers, top_k, num_experts)


@lru_cache(maxsize=8)
def _experts_of_checkpoint(checkpoint: str) -> tuple[int, int]:
    """(top-k, number of experts) of the model in a Hugging Face folder."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=True)
    text = config.get_text_config()
    top_k, num_experts = (_first(text, names) for names in (_TOP_K, _NUM_EXPERTS))
    if not (top_k and num_experts):
        raise PeriodicError(
            f"The model in {checkpoint} does not say how many experts it has.",
            feature="delta-router-replay",
            expected=f"one of {', '.join(_NUM_EXPERTS)} and one of {', '.join(_TOP_K)}",
            found=f"{num_experts} experts, {top_k} per token",
            remedy="Replay routes only for a mixture of experts: -delta-router-replay.",
        )
    return top_k, num_experts


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    return next((value for name in names if (value := getattr(config, name, None))), None)
