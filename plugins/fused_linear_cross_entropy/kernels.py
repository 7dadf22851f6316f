"""What computes log-probabilities: torch in blocks, or the kernel of liger-kernel.

Each takes (hidden (T, H), weight (V, H), targets (T,), Projection, with_entropy) and returns
log-probabilities and entropy, (T,) each, the latter None where it is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from miles_periodic.plugins.fused_linear_cross_entropy.chunked import (
    ChunkedLogProbs,
    Projection,
    check_targets,
    statistics,
)

Answer = tuple[torch.Tensor, torch.Tensor | None]
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Projection, bool], Answer]

#: A kernel's answer is compared with torch's on so many tokens, evenly spread.
CHECKED_TOKENS = 16
#: Roundings of half precision that a kernel's logits may have had.
_HALF_ULP = 2.0**-8


def chunked(hidden, weight, targets, how, with_entropy) -> Answer:
    """torch's own operations, on any device, exact."""
    return ChunkedLogProbs.apply(hidden, weight, targets, how, with_entropy)


def liger(hidden, weight, targets, how, with_entropy) -> Answer:
    """liger-kernel's fused linear scaled cross entropy: on Hopper one kernel, for BF16 operands.

    Its Hopper kernel stages logits in FP16; elsewhere it is chunked over tokens alone.
    """
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import (
        LigerFusedLinearScaledCrossEntropyFunction as OneRank,
    )
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import (
        LigerFusedLinearScaledCrossEntropyTPFunction as Split,
    )

    _refuse(how.scale <= 0, "liger", "a scale of logits above 0")
    _refuse(hidden.dtype != weight.dtype, "liger", "hidden and weight of one dtype")
    ignore_index = -100 if how.ignore_index is None else how.ignore_index
    settings = (1 / how.scale, ignore_index, 1, with_entropy)
    if how.tp_group is None:
        answer = OneRank.apply(hidden, weight, targets, *settings)
    else:
        offset = torch.distributed.get_rank(how.tp_group) * len(weight)
        _refuse(how.vocab_start != offset, "liger", "equal parts of the vocabulary, by rank")
        answer = Split.apply(hidden, weight, targets, how.tp_group, *settings)
    losses, entropy = answer if with_entropy else (answer, None)
    return -losses, entropy


def _refuse(refused: bool, kernel: str, expected: str) -> None:
    if refused:
        raise ValueError(f"the kernel {kernel} takes {expected}; use torch")


def checked(kernel: Kernel) -> Kernel:
    """`kernel`, its targets checked before and its answer after; never above 0."""

    def compute(hidden, weight, targets, how, with_entropy) -> Answer:
        if not len(targets):
            return chunked(hidden, weight, targets, how, with_entropy)
        size = 1 if how.tp_group is None else torch.distributed.get_world_size(how.tp_group)
        inside = (targets >= 0) & (targets < size * len(weight))
        check_targets(targets, inside.float(), how)
        if how.any_target and not bool(inside.all()):
            return _inside_and_outside(compute, hidden, weight, targets, how, with_entropy, inside)
        log_probs, entropy = kernel(hidden, weight, targets, how, with_entropy)
        with torch.no_grad():
            check_answer(log_probs, hidden, weight, targets, how)
        return AtMostZero.apply(log_probs), entropy

    return compute


def _inside_and_outside(
    compute: Kernel,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    how: Projection,
    with_entropy: bool,
    inside: torch.Tensor,
) -> Answer:
    """Targets outside of the vocabulary by torch, which knows how Megatron takes them."""
    rows = torch.cat([inside.nonzero()[:, 0], (~inside).nonzero()[:, 0]])
    parts = rows.split([int(inside.sum()), int((~inside).sum())])
    answers = [
        one(hidden[part], weight, targets[part], how, with_entropy)
        for one, part in zip((compute, chunked), parts, strict=True)
    ]
    back = rows.argsort()
    log_probs, entropies = zip(*answers, strict=True)
    return torch.cat(log_probs)[back], torch.cat(entropies)[back] if with_entropy else None


class AtMostZero(torch.autograd.Function):
    """Rounding that lies above 0 becomes 0, and its gradient stays what the kernel makes of it."""

    @staticmethod
    def forward(ctx, log_probs):
        return log_probs.clamp(max=0)

    @staticmethod
    def backward(ctx, of_log_probs):
        return of_log_probs


def check_answer(
    log_probs: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    how: Projection,
) -> None:
    """Raise ArithmeticError for a log-probability above 0, or far from torch's on some tokens."""
    found = sample(len(targets), targets.device)
    exact = statistics(hidden[found], weight, targets[found], how)
    reference = exact.target - exact.normalizer()
    if how.ignore_index is not None:
        reference = torch.where(targets[found] == how.ignore_index, 0.0, reference)
    slack = 1e-2 + 4 * _HALF_ULP * torch.maximum(exact.peak.abs(), exact.target.abs())
    # A NaN is near nothing, but where torch has one, too.
    near = (log_probs[found] - reference).abs() <= slack
    far = ~near & reference.isfinite()
    above = log_probs > slack.max()
    if bool(far.any() | above.any()):
        raise ArithmeticError(
            f"the largest log-probability is {log_probs.max():.4g}, and of {len(found)} tokens "
            f"{int(far.sum())} are further than rounding from torch's: the kernel does not compute "
            "log-probabilities here; use torch"
        )


def sample(num_tokens: int, device: Any) -> torch.Tensor:
    """At most CHECKED_TOKENS positions, the first and the last among them."""
    count = min(num_tokens, CHECKED_TOKENS)
    return torch.linspace(0, num_tokens - 1, count, device=device).round().long()


KERNELS: dict[str, Kernel] = {"torch": chunked, "liger": checked(liger)}
