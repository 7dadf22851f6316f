"""Log-probabilities of given tokens, and a loss, from hidden states and the output weight."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from miles_periodic.plugins.fused_linear_cross_entropy.chunked import Projection
from miles_periodic.plugins.fused_linear_cross_entropy.kernels import KERNELS
from miles_periodic.plugins.fused_linear_cross_entropy.settings import (
    CHUNK_TOKENS,
    CHUNK_VOCABULARY,
)


def token_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    vocab_start: int = 0,
    tp_group: Any = None,
    ignore_index: int | None = None,
    any_target: bool = False,
    chunk_tokens: int = CHUNK_TOKENS,
    chunk_vocabulary: int = CHUNK_VOCABULARY,
    with_entropy: bool = False,
    kernel: Literal["torch", "liger"] = "torch",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """log softmax(hidden @ weight.T * logit_scale / temperature)[targets], no (T, V) tensor made.

    hidden: (T, H), floating. weight: (V, H), floating: all of the vocabulary, or with `tp_group`
    this rank's rows from token `vocab_start` on. targets: (T,), int64, tokens of the whole
    vocabulary. `hidden` and `targets` are the same on all ranks of `tp_group`, and so is what
    comes back: (T,), FP32 (FP64 for FP64 operands), never above 0; `with_entropy` adds the entropy
    of each token's distribution in nats, (T,). Both have gradients of hidden and weight; the
    upstream gradient of each token enters before anything is summed over tokens.

    ignore_index: a target whose two values are 0 and without gradient.
    any_target: takes targets outside of the vocabulary as Megatron's cross entropy does: as if
    their logit were a constant, as large as the token's largest one.
    chunk_tokens, chunk_vocabulary: the largest block of logits that exists at once.
    kernel: what computes it; `liger` needs CUDA and its package.

    Raises ValueError for shapes, dtypes and a temperature that do not fit, for a target that no
    rank holds (without `any_target`), and for what a kernel cannot compute; ArithmeticError where a
    kernel's answer is not a log-probability or far from an exact one. NaN and infinity go through.
    """
    _check(hidden, weight, targets, temperature, logit_scale, chunk_tokens, chunk_vocabulary)
    how = Projection(
        scale=logit_scale / temperature,
        vocab_start=vocab_start,
        tp_group=tp_group,
        ignore_index=ignore_index,
        any_target=any_target,
        chunk_tokens=chunk_tokens,
        chunk_vocabulary=chunk_vocabulary,
    )
    if kernel not in KERNELS:
        raise ValueError(f"kernel is {kernel!r}; one of {', '.join(KERNELS)} is taken")
    log_probs, entropy = KERNELS[kernel](hidden, weight, targets, how, with_entropy)
    return (log_probs, entropy) if with_entropy else log_probs


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    token_weights: torch.Tensor | None = None,
    reduction: Literal["none", "sum", "mean"] = "mean",
    ignore_index: int | None = -100,
    **how: Any,
) -> torch.Tensor:
    """The loss -log p(target), weighted per token; arguments as in `token_log_probs`.

    token_weights: (T,), such as a mask; None weighs each token that is not ignored with 1.
    reduction: `none` gives (T,), weights included; `sum` a scalar; `mean` the sum over the sum of
    weights, NaN where that is 0.
    """
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction is {reduction!r}; none, sum or mean is taken")
    if token_weights is not None and token_weights.shape != targets.shape:
        raise ValueError(
            f"token_weights are {tuple(token_weights.shape)}; {tuple(targets.shape)} is taken"
        )
    losses = -token_log_probs(hidden, weight, targets, ignore_index=ignore_index, **how)
    weights = torch.ones_like(losses) if token_weights is None else token_weights.to(losses.dtype)
    if ignore_index is not None:
        weights = weights * (targets != ignore_index)
    weighted = losses * weights
    if reduction == "none":
        return weighted
    return weighted.sum() if reduction == "sum" else weighted.sum() / weights.sum()


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    logit_scale: float,
    *chunks: int,
) -> None:
    shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, targets "
    shapes += f"{tuple(targets.shape)}"
    if (hidden.ndim, weight.ndim, targets.ndim) != (2, 2, 1):
        raise ValueError(f"{shapes}: (T, H), (V, H) and (T,) are taken")
    if hidden.shape[1] != weight.shape[1] or len(hidden) != len(targets) or not len(weight):
        raise ValueError(f"{shapes}: T and H must agree, and V be at least 1")
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"hidden is {hidden.dtype}, weight {weight.dtype}; floating is taken")
    if targets.dtype != torch.int64:
        raise ValueError(f"targets are {targets.dtype}; torch.int64 is taken")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature is {temperature}; a finite number above 0 is taken")
    if not (math.isfinite(logit_scale) and logit_scale != 0):
        raise ValueError(f"logit_scale is {logit_scale}; a finite number that is not 0 is taken")
    if min(chunks) < 1:
        raise ValueError(f"chunks of {min(chunks)}; at least 1 is taken")
