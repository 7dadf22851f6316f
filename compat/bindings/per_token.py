"""The one place that cuts a sample: everything that has a value per token, alike."""

from __future__ import annotations

import inspect
from typing import Any

#: Fields of Miles's Sample with one value per response token.
PER_RESPONSE_TOKEN = ("rollout_log_probs", "loss_mask", "teacher_log_probs", "opd_reverse_kl")
#: Fields with one row per token but the last.
PER_ROW = ("rollout_routed_experts", "rollout_indexer_topk")
#: Keys of its metadata with one value per response token.
PER_RESPONSE_TOKEN_METADATA = ("opd_student_top_logprobs",)


def keep_response(sample: Any, num_tokens: int, tokenizer: Any) -> None:
    """Keep the first `num_tokens` tokens of a sample's response, in every field that counts them.

    Fields that a tree does not have, or that are not set, stay so. Raises ValueError where the
    response has fewer tokens.
    """
    if not 0 <= num_tokens <= sample.response_length:
        raise ValueError(f"a response of {sample.response_length} tokens has no {num_tokens}")
    kept = len(sample.tokens) - sample.response_length + num_tokens
    sample.tokens = sample.tokens[:kept]
    sample.response_length = num_tokens
    sample.response = tokenizer.decode(sample.tokens[kept - num_tokens :]) if num_tokens else ""
    for name in PER_RESPONSE_TOKEN:
        _cut(sample, name, num_tokens)
    for name in PER_ROW:
        _cut(sample, name, max(kept - 1, 0))
    for key in PER_RESPONSE_TOKEN_METADATA:
        if key in (sample.metadata or {}):
            sample.metadata[key] = sample.metadata[key][:num_tokens]


def _cut(sample: Any, name: str, length: int) -> None:
    value = getattr(sample, name, None)
    if value is not None:
        setattr(sample, name, value[:length])


def truncate(wrapped, instance, args, kwargs):
    """Symptom: a sample over its length limit loses tokens and log-probabilities, not routes.

    Trigger: Miles 0.0.2 cuts the turn that exceeds --max-seq-len. Takes down: nothing. Safe
    because Miles's own cut still runs, over fields that have that length already, and sets the
    status. Upstream: radixark/miles#861, #893.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    keep_response(call["sample"], call["keep_tokens"], call["tokenizer"])
    return wrapped(*args, **kwargs)
