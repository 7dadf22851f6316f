"""Feature `fused-linear-cross-entropy`: token log-probabilities without a tensor of logits.

log_probs   token_log_probs() and linear_cross_entropy(): hidden states and a weight in
chunked     the exact computation in blocks, forward and backward; over ranks
kernels     the same by liger-kernel, checked
conflicts   command lines that cannot have it
settings    the slug, and what a user can set
feature     the hooks

torch is imported with the first of `token_log_probs` and `linear_cross_entropy` that is asked for.
"""

from miles_periodic.plugins.fused_linear_cross_entropy.settings import (
    FusedLinearCrossEntropySettings,
)

__all__ = ["FusedLinearCrossEntropySettings", "linear_cross_entropy", "token_log_probs"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from miles_periodic.plugins.fused_linear_cross_entropy import log_probs

    return getattr(log_probs, name)
