"""What a model returns in place of logits: what they would be made of, and nothing to look into."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from miles_periodic.hooks.values import OutputHead


@dataclass(frozen=True, slots=True, eq=False)
class DeferredLogits:
    """Logits of S positions of B sequences over the vocabulary, not made.

    head: its `hidden` is (S * B, H), position by position.
    num_positions, num_sequences: S and B.
    batch_first: whether the logits that it stands for are (B, S, V) rather than (S, B, V).

    It answers what Megatron's post-processing and its schedules, and Miles's losses, do with logits
    without a look at them. Anything else is an AttributeError or a TypeError that names this class.
    """

    head: OutputHead
    num_positions: int
    num_sequences: int
    batch_first: bool = False

    @property
    def device(self) -> Any:
        return self.head.hidden.device

    @property
    def leading_shape(self) -> tuple[int, int]:
        """The shape of the logits without the vocabulary."""
        shape = (self.num_positions, self.num_sequences)
        return shape[::-1] if self.batch_first else shape

    def transpose(self, first: int, second: int) -> DeferredLogits:
        """The same with positions and sequences exchanged; only these two can be."""
        if {first, second} != {0, 1}:
            raise TypeError(f"DeferredLogits cannot exchange dimensions {first} and {second}")
        return replace(self, batch_first=not self.batch_first)

    def contiguous(self) -> DeferredLogits:
        return self

    def __mul__(self, factor: float) -> DeferredLogits:
        if not isinstance(factor, int | float):
            return NotImplemented
        scale = self.head.logit_scale * factor
        return replace(self, head=replace(self.head, logit_scale=scale))

    def sum(self) -> Any:
        """A scalar that hangs on all that the logits hang on; its value means nothing.

        Losses add it times 0, so that backward runs where a rank has no token to learn from.
        """
        # In FP16 a sum of all weights can be infinite, and times 0 it would be NaN.
        return self.head.hidden.float().sum() + self.head.weight.sum(0).float().sum()

    def flat_head(self) -> OutputHead:
        """The head with `hidden` in the order of the logits, flattened to rows."""
        if not self.batch_first or self.num_sequences == 1:
            return self.head
        hidden = self.head.hidden.view(self.num_positions, self.num_sequences, -1)
        return replace(self.head, hidden=hidden.transpose(0, 1).flatten(0, 1))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"DeferredLogits has no {name!r}: under fused-linear-cross-entropy a model makes no "
            "logits; take the feature out with -fused-linear-cross-entropy where something must "
            "look at them"
        )
