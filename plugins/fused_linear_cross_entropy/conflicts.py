"""Command lines of Miles under which something must look at logits."""

from __future__ import annotations

from typing import Any

from miles_periodic.hooks.conflicts import Conflict


def _divides_nothing(temperature: Any) -> bool:
    return not (isinstance(temperature, int | float) and 0 < temperature < float("inf"))


CONFLICTS = (
    Conflict("train_backend", "FSDP's model makes its own logits", "megatron"),
    Conflict("true_on_policy_mode", "logits must be rounded as the server rounds them"),
    Conflict("enable_mtp_training", "multi-token prediction makes logits of its own"),
    Conflict("mtp_num_layers", "multi-token prediction makes logits of its own"),
    Conflict("multimodal_keys", "a model with images is no plain GPTModel"),
    Conflict("allgather_cp", "responses are moved between ranks by the shape of their logits"),
    Conflict("custom_loss_function_path", "a loss of your own may look at logits"),
    Conflict("overlap_moe_expert_parallel_comm", "its schedule hands tensors on, not objects"),
    Conflict("defer_embedding_wgrad_compute", "it keeps the gradients of logits"),
    Conflict("config_logger_dir", "it writes logits down"),
    Conflict(
        "rollout_temperature",
        "logits cannot be divided by it",
        is_refused=_divides_nothing,
    ),
)
