"""What a sample costs to train: floating-point operations of each layer kind, or measured seconds.

Conventions: a multiply-add is 2 operations; attention is causal, so token i sees i keys.

Sources of the formulas: matrix products and the backward pass at twice the forward, Narayanan et
al. 2021 (Megatron-LM), appendix; attention backward at 2.5 times its forward (it recomputes the
scores), Dao 2023 (FlashAttention-2); MLA projections, DeepSeek-V2 report, section 2.1; sparse
attention with an indexer, DeepSeek-V3.2 report, section 2. Embedding look-ups, norms and
activations are left out: they are linear in tokens and below a percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from miles_periodic.plugins.cost_aware_packing.model_shape import ModelShape


@dataclass(frozen=True)
class AttentionTerm:
    """Attention of one reach: `flops_per_pair` for each (query, key) pair, over all its layers.

    A query sees at most `window` keys, itself included; None: all before it.
    """

    flops_per_pair: float
    window: int | None = None

    def pairs(self, lengths: np.ndarray) -> np.ndarray:
        """(query, key) pairs per sample, float64 [samples]."""
        near = lengths if self.window is None else np.minimum(lengths, self.window)
        return near * (near + 1) / 2 + (lengths - near) * near


@dataclass(frozen=True)
class MeasuredMicrobatch:
    """Seconds that a micro-batch of samples with `lengths` tokens took, forward and backward."""

    lengths: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class CostModel:
    """Cost of a sample: a part linear in its tokens and one per (query, key) pair.

    Tensor and context parallel ranks share a sample evenly, so they change no ratio between
    samples; what they do change is padding, `pad_multiple`.

    Attributes:
        linear: cost per token.
        attention: costs per pair; empty for a model without attention.
        per_microbatch: cost of a micro-batch beyond its samples (seconds of launch and exchange).
        pad_multiple: lengths are rounded up to a multiple of this, 2 * context-parallel size.
        unit: "FLOPs" or "seconds".
    """

    linear: float
    attention: tuple[AttentionTerm, ...] = ()
    per_microbatch: float = 0.0
    pad_multiple: int = 1
    unit: str = "FLOPs"

    @classmethod
    def from_config(
        cls, config: object, *, recompute: bool = False, pad_multiple: int = 1
    ) -> CostModel:
        """FLOPs of forward and backward for a model described by `config`.

        `config` is a mapping or an object with the names of a Hugging Face config or of Megatron's
        arguments; `model_shape` says which. With `recompute` the forward of every layer runs again
        in the backward. Raises `ValueError` for names that are missing or layer kinds unknown.
        """
        shape = ModelShape.from_config(config)
        again = 1.0 if recompute else 0.0
        terms = tuple(
            AttentionTerm((3.5 + again) * flops, window)
            for window, flops in shape.forward_flops_per_pair().items()
        )
        return cls((3.0 + again) * shape.forward_flops_per_token(), terms, 0.0, pad_multiple)

    def sample_costs(self, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
        """Cost of each sample of `lengths` tokens, float64 [samples]."""
        padded = self._padded(lengths)
        return self.linear * padded + self._attention_costs(padded)

    def microbatch_cost(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Cost of one micro-batch of samples with `lengths` tokens."""
        return float(self.sample_costs(lengths).sum()) + self.per_microbatch

    def fit(self, measured: Sequence[MeasuredMicrobatch]) -> CostModel:
        """The same shapes, in seconds: linear part, attention part and a constant are scaled.

        The three scales are the non-negative ones with the least squared relative error. Raises
        `ValueError` for fewer than 3 micro-batches, for seconds that are not positive, or for
        micro-batches too alike to tell anything.
        """
        _check_measured(measured)
        seconds = np.array([one.seconds for one in measured])
        features = np.array([self._features(one.lengths) for one in measured]) / seconds[:, None]
        linear, attention, constant = _non_negative_fit(features)
        return replace(
            self,
            linear=self.linear * linear,
            attention=tuple(
                replace(term, flops_per_pair=term.flops_per_pair * attention)
                for term in self.attention
            ),
            per_microbatch=constant,
            unit="seconds",
        )

    def _padded(self, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
        whole = np.asarray(lengths, dtype=np.int64)
        return (-(-whole // self.pad_multiple) * self.pad_multiple).astype(np.float64)

    def _attention_costs(self, padded: np.ndarray) -> np.ndarray:
        costs = np.zeros_like(padded)
        for term in self.attention:
            costs += term.flops_per_pair * term.pairs(padded)
        return costs

    def _features(self, lengths: Sequence[int]) -> tuple[float, float, float]:
        padded = self._padded(lengths)
        return self.linear * padded.sum(), self._attention_costs(padded).sum(), 1.0


def _check_measured(measured: Sequence[MeasuredMicrobatch]) -> None:
    if len(measured) < 3:
        raise ValueError(f"{len(measured)} measured micro-batches: pass 3 or more")
    for position, one in enumerate(measured):
        if not (one.lengths and min(one.lengths) >= 1 and 0 < one.seconds < float("inf")):
            raise ValueError(f"measured micro-batch {position} is {one}: drop it")


def _non_negative_fit(features: np.ndarray) -> np.ndarray:
    """Non-negative x with the least |features x - 1|, float64 [3].

    The optimum is the plain least-squares fit on the columns where it is positive, so the best of
    the few column subsets that come out non-negative is it.
    """
    size = np.abs(features).max(axis=0)
    usable = [column for column in range(features.shape[1]) if size[column] > 0]
    scaled = features / np.where(size > 0, size, 1.0)
    best, best_error = None, np.inf
    for num_columns in range(1, len(usable) + 1):
        for columns in map(list, combinations(usable, num_columns)):
            part, _, independent, _ = np.linalg.lstsq(scaled[:, columns], np.ones(len(features)))
            error = float(np.square(scaled[:, columns] @ part - 1).sum())
            if independent == num_columns and (part >= 0).all() and error < best_error - 1e-15:
                best, best_error = np.zeros(features.shape[1]), error
                best[columns] = part / size[columns]
    if best is None or not best[:2].any():
        raise ValueError(
            "the measured micro-batches do not show how time grows with length: "
            "measure some with few long samples and some with many short ones"
        )
    return best
