"""Miles's log-probabilities and entropies of responses, computed without logits."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.output_logits import SLUG
from miles_periodic.compat.deferred_logits import DeferredLogits
from miles_periodic.hooks.errors import PeriodicError

#: Up to here FP32 holds each whole number.
_LARGEST_POSITION = 2**24


def compute(wrapped, instance, args, kwargs):
    """Symptom: a micro-batch's logits are divided, sliced and cloned in FP32 for a few responses.

    Trigger: a loss, or the pass for old log-probabilities, asks for those of the responses.
    Takes down: the step, where the model made logits after all. Safe because Miles's own slicing
    says which position predicts which token, in every layout and on every context-parallel rank:
    it is given position numbers in place of logits; the result is what it returns, sample by
    sample. Upstream: NVIDIA/Megatron-LM#6700.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    call.apply_defaults()
    asked = call.arguments
    deferred = asked["logits"]
    if not isinstance(deferred, DeferredLogits):
        raise _made_logits(wrapped, deferred)
    rows, targets, lengths = _responses(wrapped, deferred, asked)
    head = deferred.flat_head()
    log_probs, entropy = manager().hook.token_log_probs(
        head=replace(head, hidden=head.hidden.index_select(0, rows)),
        targets=targets,
        temperature=asked["args"].rollout_temperature,
        any_target=False,
        with_entropy=asked["with_entropy"],
    )
    result = {"log_probs": list(log_probs.split(lengths))}
    if asked["with_entropy"]:
        entropy = entropy if asked.get("entropy_requires_grad", True) else entropy.detach()
        result["entropy"] = list(entropy.split(lengths))
    return result


def _responses(
    wrapped: Any, deferred: DeferredLogits, asked: dict[str, Any]
) -> tuple[Any, Any, list[int]]:
    """Rows of `hidden` and their tokens, (R,) int64 each over all samples, and R of each sample."""
    import torch

    num_sequences, num_positions = deferred.leading_shape
    if num_sequences * num_positions > _LARGEST_POSITION:
        raise PeriodicError(
            f"A micro-batch of {num_sequences * num_positions} positions cannot be counted.",
            feature=SLUG,
            expected=f"at most {_LARGEST_POSITION}",
            remedy="Make micro-batches smaller with --max-tokens-per-gpu.",
        )
    positions = torch.arange(
        num_sequences * num_positions, dtype=torch.float32, device=deferred.device
    ).view(num_sequences, num_positions, 1)
    # A temperature would divide the positions, too.
    arguments = SimpleNamespace(**{**vars(asked["args"]), "rollout_temperature": 1.0})
    names = ("unconcat_tokens", "total_lengths", "response_lengths", "max_seq_lens")
    slices = sys.modules[wrapped.__module__].get_responses(
        positions, args=arguments, **{name: asked[name] for name in names}
    )
    # Of a response without tokens, Miles gives all tokens of the sample.
    found = [(rows[:, 0].long(), t if len(rows) else t[:0]) for rows, t in slices]
    rows, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return rows, targets, [len(tokens) for _, tokens in found]


def _made_logits(wrapped: Any, found: Any) -> PeriodicError:
    shape = tuple(getattr(found, "shape", ()))
    return PeriodicError(
        "A model returned logits although it was to make none.",
        feature=SLUG,
        target=f"{wrapped.__module__}:{wrapped.__qualname__}",
        expected="DeferredLogits, from a GPTModel of Megatron-core",
        found=f"{type(found).__name__} {shape}",
        remedy=f"Train a model that is a GPTModel, or take the feature out with -{SLUG}.",
    )
