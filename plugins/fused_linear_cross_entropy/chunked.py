"""Token log-probabilities in blocks of tokens x vocabulary, exact, on any device.

Shapes: T tokens, H hidden, V rows of the vocabulary that this rank holds. A block of logits is at
most (chunk_tokens, chunk_vocabulary); it is used and dropped, and made again in backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from miles_periodic.plugins.fused_linear_cross_entropy.settings import (
    CHUNK_TOKENS,
    CHUNK_VOCABULARY,
)

#: Whether `torch.mm` multiplies half precision into FP32 on a GPU.
_HAS_OUT_DTYPE = torch.__version__ >= (2, 8)


@dataclass(frozen=True, slots=True)
class Projection:
    """How hidden states become the logits that a log-probability is taken from.

    scale: what `hidden @ weight.T` is multiplied with; 1 / temperature among it.
    vocab_start: the token that row 0 of this rank's weight stands for.
    tp_group: process group over which the vocabulary is split, or None.
    ignore_index: a target whose log-probability is 0 and has no gradient, or None.
    any_target: whether a target outside of the vocabulary is taken, as if its logit were a constant
        as large as the token's largest one: what Megatron makes of it.
    chunk_tokens, chunk_vocabulary: the largest block of logits that exists at once.
    """

    scale: float = 1.0
    vocab_start: int = 0
    tp_group: Any = None
    ignore_index: int | None = None
    any_target: bool = False
    chunk_tokens: int = CHUNK_TOKENS
    chunk_vocabulary: int = CHUNK_VOCABULARY

    def blocks(self, size: int, step: int) -> Iterator[slice]:
        """`size` rows in runs of at most `step`."""
        return (slice(start, min(start + step, size)) for start in range(0, size, step))


@dataclass(slots=True)
class Statistics:
    """What is known of each token over a part of the vocabulary; tensors (T,), floating.

    peak: the largest logit. total: sum of exp(logit - peak). weighted: sum of exp(logit - peak) *
    logit. target: the target's logit, 0 where this part does not hold it. held: how often it does.
    """

    peak: torch.Tensor
    total: torch.Tensor
    weighted: torch.Tensor
    target: torch.Tensor
    held: torch.Tensor

    def normalizer(self) -> torch.Tensor:
        """log of the sum of exp(logit)."""
        return torch.where(self.peak == -torch.inf, 0.0, self.peak) + self.total.log()


def accumulation_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """FP32, and FP64 where an operand is."""
    is_double = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if is_double else torch.float32


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left @ right`, accumulated and returned in the accumulation dtype, under no autocast."""
    dtype = accumulation_dtype(left, right)
    with torch.autocast(left.device.type, enabled=False):
        if _multiplies_as_it_is(left, right):
            return torch.mm(left, right, out_dtype=dtype)
        return left.to(dtype) @ right.to(dtype)


def _multiplies_as_it_is(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the device multiplies half precision with a result in FP32 (torch 2.8 and later)."""
    half = left.dtype == right.dtype and left.dtype in (torch.bfloat16, torch.float16)
    return half and left.is_cuda and _HAS_OUT_DTYPE


def statistics(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    how: Projection,
    with_entropy: bool = False,
) -> Statistics:
    """The statistics of all tokens over the whole vocabulary, the ranks' parts joined.

    `weighted` stays 0 without `with_entropy`.
    """
    found = _empty_statistics(len(targets), hidden, weight)
    for rows in how.blocks(len(targets), how.chunk_tokens):
        for columns in how.blocks(len(weight), how.chunk_vocabulary):
            logits = product(hidden[rows], weight[columns].T).mul_(how.scale)
            local = targets[rows] - how.vocab_start - columns.start
            _add_block(found, rows, logits, local, with_entropy)
    if how.tp_group is not None and len(targets):
        _join_ranks(found, how.tp_group)
    return found


def _empty_statistics(num_tokens: int, *operands: torch.Tensor) -> Statistics:
    options = {"dtype": accumulation_dtype(*operands), "device": operands[0].device}
    zeros = [torch.zeros(num_tokens, **options) for _ in range(4)]
    return Statistics(torch.full((num_tokens,), -torch.inf, **options), *zeros)


def _add_block(
    found: Statistics,
    rows: slice,
    logits: torch.Tensor,
    local: torch.Tensor,
    with_entropy: bool,
) -> None:
    """Take one block of logits into the rows' statistics."""
    is_here = (local >= 0) & (local < logits.shape[1])
    at = local.clamp(0, logits.shape[1] - 1)[:, None]
    found.target[rows] += torch.where(is_here, logits.gather(1, at)[:, 0], 0.0)
    found.held[rows] += is_here
    peak = torch.maximum(found.peak[rows], logits.amax(1))
    # A row that is -inf so far: exp(-inf - -inf) would be NaN for good.
    offset = torch.where(peak == -torch.inf, 0.0, peak)
    shrink = (found.peak[rows] - offset).exp()
    powers = (logits - offset[:, None]).exp_()
    found.total[rows] = found.total[rows] * shrink + powers.sum(1)
    if with_entropy:
        found.weighted[rows] = found.weighted[rows] * shrink + powers.mul_(logits).sum(1)
    found.peak[rows] = peak


def _join_ranks(found: Statistics, group: Any) -> None:
    peak = found.peak.clone()
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    shrink = (found.peak - torch.where(peak == -torch.inf, 0.0, peak)).exp()
    parts = torch.stack((found.total * shrink, found.weighted * shrink, found.target, found.held))
    dist.all_reduce(parts, group=group)
    found.peak = peak
    found.total, found.weighted, found.target, found.held = parts.unbind(0)


class ChunkedLogProbs(torch.autograd.Function):
    """(hidden (T, H), weight (V, H), targets (T,), Projection) -> log-probs, entropy, both (T,)."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, how, with_entropy):
        found = statistics(hidden, weight, targets, how, with_entropy)
        check_targets(targets, found.held, how)
        normalizer = found.normalizer()
        counts = _counts(targets, how.ignore_index)
        # Without `any_target` only ignored targets are held by none.
        target = torch.where(found.held > 0, found.target, found.peak)
        log_probs = torch.where(counts, target - normalizer, 0.0)
        entropy = None
        if with_entropy:
            entropy = torch.where(counts, normalizer - found.weighted / found.total, 0.0)
        ctx.save_for_backward(hidden, weight, targets, normalizer, entropy)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, of_log_probs, of_entropy):
        """Gradients of hidden and weight, each token's upstream gradient inside the sums."""
        hidden, weight, targets, normalizer, entropy = ctx.saved_tensors
        if of_log_probs is None and of_entropy is None:
            return None, None, None, None, None
        counts = _counts(targets, ctx.how.ignore_index)
        upstream = [
            None if grad is None else torch.where(counts, grad.to(normalizer.dtype), 0.0)
            for grad in (of_log_probs, of_entropy)
        ]
        of_hidden, of_weight = gradients(
            hidden,
            weight,
            targets,
            normalizer,
            entropy,
            *upstream,
            ctx.how,
            wanted=ctx.needs_input_grad[:2],
        )
        return of_hidden, of_weight, None, None, None


def gradients(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    normalizer: torch.Tensor,
    entropy: torch.Tensor | None,
    of_log_probs: torch.Tensor | None,
    of_entropy: torch.Tensor | None,
    how: Projection,
    wanted: tuple[bool, bool] = (True, True),
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients (T, H) and (V, H) in the dtypes of hidden and weight, summed in FP32.

    Vocabulary is the outer loop, so that a part of the weight's gradient is rounded once, when it
    is whole; only hidden's gradient is held in FP32.
    """
    dtype = normalizer.dtype
    of_hidden = hidden.new_zeros(hidden.shape, dtype=dtype) if wanted[0] else None
    of_weight = torch.empty_like(weight) if wanted[1] else None
    for columns in how.blocks(len(weight), how.chunk_vocabulary):
        part = weight[columns]
        of_part = part.new_zeros(part.shape, dtype=dtype) if wanted[1] else None
        for rows in how.blocks(len(targets), how.chunk_tokens):
            logits = product(hidden[rows], part.T).mul_(how.scale)
            of_logits = _of_block(
                logits,
                targets[rows] - how.vocab_start - columns.start,
                normalizer[rows],
                None if entropy is None else entropy[rows],
                None if of_log_probs is None else of_log_probs[rows],
                None if of_entropy is None else of_entropy[rows],
            ).mul_(how.scale)
            of_logits = _as_operand(of_logits, weight)
            if of_hidden is not None:
                of_hidden[rows] += product(of_logits, part)
            if of_part is not None:
                of_part += product(of_logits.T, hidden[rows])
        if of_weight is not None:
            of_weight[columns] = of_part
    if of_hidden is not None and how.tp_group is not None:
        dist.all_reduce(of_hidden, group=how.tp_group)
    return None if of_hidden is None else of_hidden.to(hidden.dtype), of_weight


def _of_block(
    logits: torch.Tensor,
    local: torch.Tensor,
    normalizer: torch.Tensor,
    entropy: torch.Tensor | None,
    of_log_probs: torch.Tensor | None,
    of_entropy: torch.Tensor | None,
) -> torch.Tensor:
    """The gradient of one block of logits; d log p_y = 1_y - p, d H = p (log Z - H - z)."""
    probabilities = (logits - normalizer[:, None]).exp_()
    result = torch.zeros_like(logits)
    if of_entropy is not None:
        surprise = logits.neg_().add_((normalizer - entropy)[:, None])
        result.addcmul_(probabilities * of_entropy[:, None], surprise)
    if of_log_probs is not None:
        result.addcmul_(probabilities, of_log_probs[:, None], value=-1)
        is_here = (local >= 0) & (local < logits.shape[1])
        at = local.clamp(0, logits.shape[1] - 1)[:, None]
        result.scatter_add_(1, at, torch.where(is_here, of_log_probs, 0.0)[:, None])
    return result


def _as_operand(of_logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In the weight's dtype where the device then multiplies faster, as Megatron's own does."""
    half = weight.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)
    return of_logits.to(weight.dtype) if half and _HAS_OUT_DTYPE else of_logits


def _counts(targets: torch.Tensor, ignore_index: int | None) -> torch.Tensor:
    if ignore_index is None:
        return torch.ones_like(targets, dtype=torch.bool)
    return targets != ignore_index


def check_targets(targets: torch.Tensor, held: torch.Tensor, how: Projection) -> None:
    """Raise ValueError where a target is held by none of the ranks, or by more than one."""
    bad = (held > 1 if how.any_target else held != 1) & _counts(targets, how.ignore_index)
    if bool(bad.any()):
        first = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"target {int(targets[first])} of token {first} is in the vocabulary of "
            f"{int(held[first])} ranks, and must be in that of one; pass ignore_index for tokens "
            "without a target, and each rank's own vocab_start"
        )
