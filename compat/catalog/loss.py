"""What trainers bind so that no logits are made: a model's output, and the losses that take it."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
_LOSS = "miles.backends.training_utils.loss"
_PROCESSORS = "miles.backends.training_utils.loss_hub.logit_processors"

BINDINGS = (
    Binding(
        name="loss/output",
        upstream="megatron",
        target="megatron.core.models.gpt.gpt_model:GPTModel._postprocess",
        adapter=f"{_ADAPTERS}.output_logits:defer",
        processes=("trainer",),
        relies_on=(
            "megatron.core.tensor_parallel.layers:ColumnParallelLinear.forward",
            "megatron.core.tensor_parallel.mappings:gather_from_sequence_parallel_region",
        ),
    ),
    Binding(
        name="loss/log-probs",
        upstream="miles",
        target=f"{_LOSS}:get_log_probs_and_entropy",
        adapter=f"{_ADAPTERS}.log_probs:compute",
        processes=("trainer",),
        relies_on=(f"{_LOSS}:get_responses", f"{_LOSS}:policy_loss_function"),
    ),
    Binding(
        name="loss/main-log-probs",
        upstream="miles",
        target=f"{_PROCESSORS}:get_log_probs_and_entropy",
        adapter=f"{_ADAPTERS}.log_probs:compute",
        processes=("trainer",),
        relies_on=(f"{_PROCESSORS}:get_responses",),
    ),
)
