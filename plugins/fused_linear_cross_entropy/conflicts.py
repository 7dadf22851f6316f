"""Command lines of Miles under which something must look at logits, and the error that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.fused_linear_cross_entropy.settings import SLUG


@dataclass(frozen=True, slots=True)
class Conflict:
    """argument: Miles's name of it. why: a clause. is_refused: says so of its value."""

    argument: str
    why: str
    is_refused: Callable[[Any], bool] = bool


CONFLICTS = (
    Conflict("train_backend", "FSDP's model makes its own logits", lambda v: v == "fsdp"),
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
        lambda v: not (isinstance(v, int | float) and 0 < v < float("inf")),
    ),
)


def refuse_conflicts(arguments: Mapping[str, Any]) -> None:
    """Raise PeriodicError for the first argument that the feature cannot work with."""
    for conflict in CONFLICTS:
        if conflict.argument not in arguments:
            continue
        value = arguments[conflict.argument]
        if conflict.is_refused(value):
            option = "--" + conflict.argument.replace("_", "-")
            raise PeriodicError(
                f"{option} does not go with {SLUG}: {conflict.why}.",
                feature=SLUG,
                target=conflict.argument,
                expected="another value",
                found=repr(value),
                remedy=f"Leave {option} out or change it, or take the feature out with -{SLUG}.",
            )
