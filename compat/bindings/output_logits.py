"""A model that returns what its logits would be made of, and losses of labels without logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.deferred_logits import DeferredLogits
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import OutputHead

SLUG = "fused-linear-cross-entropy"
TARGET = "megatron.core.models.gpt.gpt_model:GPTModel._postprocess"
#: Values of the model's config that need logits, and what to leave out of the command line.
_NEED_LOGITS = {
    "mtp_num_layers": "--mtp-num-layers",
    "config_logger_dir": "--config-logger-dir",
    "defer_embedding_wgrad_compute": "--defer-embedding-wgrad-compute",
    "overlap_moe_expert_parallel_comm": "--overlap-moe-expert-parallel-comm",
}


def defer(wrapped, instance, args, kwargs):
    """Symptom: a tensor of tokens x vocabulary in FP32, and its copies, decide what fits.

    Trigger: the last pipeline stage made its hidden states. Takes down: the step, where the model
    needs its logits for something else, which is named. Safe because Megatron's own code around
    the output layer runs, with the layer's hooks, so that its parameters are gathered in time;
    what comes back answers nothing that a look at logits would be needed for; value heads,
    inference and a caller's own output processor are left alone. Upstream: NVIDIA/Megatron-LM#2206,
    #2256 (Blackwell only), #6700.
    """
    signature = inspect.signature(wrapped)
    call = signature.bind(*args, **kwargs)
    if not _makes_logits(instance, call.arguments):
        return wrapped(*args, **kwargs)
    labels = call.arguments.get("labels")
    call.arguments["labels"] = None
    if "output_processor" in signature.parameters:
        call.arguments["output_processor"] = _process
        deferred = wrapped(*call.args, **call.kwargs)
    else:
        with _answers_deferred(instance.output_layer):
            deferred = wrapped(*call.args, **call.kwargs)
    return deferred if labels is None else _losses(deferred, labels)


def _makes_logits(model: Any, call: Mapping[str, Any]) -> bool:
    """Whether this call would make logits for a loss; PeriodicError where they cannot be spared."""
    if not model.post_process or call.get("runtime_gather_output"):
        return False
    if call.get("output_processor") is not None or _is_inference(model, call):
        return False
    layer = model.output_layer
    if getattr(layer, "out_features", None) == 1:
        return False
    _check_config(model.config)
    _check_layer(layer)
    return True


def _is_inference(model: Any, call: Mapping[str, Any]) -> bool:
    return call.get("inference_context") is not None and not model.training


def _check_config(config: Any) -> None:
    for name, option in _NEED_LOGITS.items():
        value = getattr(config, name, None)
        if value:
            raise _error(f"no {name}", f"{name} is {value!r}", f"Leave out {option}")
    if getattr(config, "cuda_graph_impl", "none") == "full_iteration":
        raise _error("no graph of a whole step", "one", "Leave out --cuda-graph-impl")


def _check_layer(layer: Any) -> None:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    found = f"a {type(layer).__name__}"
    is_linear = isinstance(layer, ColumnParallelLinear) and "forward" not in vars(layer)
    if not is_linear or not _only_multiplies(type(layer), ColumnParallelLinear):
        raise _error("Megatron's own output layer", found, "Train without what replaces it")
    if layer.bias is not None:
        raise _error("an output layer without a bias", f"{found} with one", "Use such a model")
    if layer.gather_output and _num_ranks(layer) > 1:
        raise _error("logits that stay split", "gathered ones", "Build it with parallel_output")
    if getattr(layer, "gtp_remat_size", 1) not in (None, 0, 1):
        raise _error("a weight that is there", "one in shards", "Leave out its sharding")


def _only_multiplies(kind: type, linear: type) -> bool:
    """Whether `forward` is that of `linear`, or of Megatron's own subclass for a fused loss.

    One from elsewhere can do more, such as capping the logits that it returns.
    """
    author = next(cls for cls in kind.__mro__ if "forward" in vars(cls))
    return author is linear or author.__module__.startswith("megatron.core.")


def _error(expected: str, found: str, remedy: str) -> PeriodicError:
    return PeriodicError(
        "The model cannot do without its logits.",
        feature=SLUG,
        target=TARGET,
        expected=expected,
        found=found,
        remedy=f"{remedy}, or take the feature out with -{SLUG}.",
    )


def _process(
    *,
    hidden_states: Any,
    output_layer: Any,
    output_weight: Any,
    scale_logits: Callable[[Any], Any],
    **others: Any,
) -> DeferredLogits:
    """Megatron's `output_processor`: hidden states (S, B, H) to logits (B, S, V) that are not."""
    with _answers_deferred(output_layer):
        deferred, _ = output_layer(hidden_states, weight=output_weight)
    return scale_logits(deferred).transpose(0, 1)


@contextmanager
def _answers_deferred(layer: Any) -> Iterator[None]:
    """Let `layer` be called, hooks and all, and multiply nothing."""

    def forward(input_: Any, weight: Any = None, runtime_gather_output: Any = None) -> Any:
        return _deferred(layer, input_, layer.weight if weight is None else weight), None

    layer.forward = forward  # on the instance, in front of the class's
    try:
        yield
    finally:
        del layer.forward


def _deferred(layer: Any, hidden: Any, weight: Any) -> DeferredLogits:
    """hidden: (S, B, H), or under sequence parallelism this rank's share of S."""
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

    if layer.sequence_parallel:
        hidden = gather_from_sequence_parallel_region(
            hidden, tensor_parallel_output_grad=False, group=layer.tp_group
        )
    num_positions, num_sequences, _ = hidden.shape
    head = OutputHead(hidden.flatten(0, 1), weight)
    if _num_ranks(layer) > 1:
        offset = layer.tp_group.rank() * len(weight)
        head = replace(head, vocab_start=offset, tp_group=layer.tp_group)
    return DeferredLogits(head, num_positions, num_sequences)


def _num_ranks(layer: Any) -> int:
    return layer.tp_group.size()


def _losses(deferred: DeferredLogits, labels: Any) -> Any:
    """labels (B, S) to what Megatron's own gives: losses (B, S), FP32."""
    log_probs, _ = manager().hook.token_log_probs(
        head=deferred.flat_head(),
        targets=labels.flatten(),
        temperature=1.0,
        any_target=True,
        with_entropy=False,
    )
    return -log_probs.view(labels.shape)
