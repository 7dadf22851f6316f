"""What a sample costs to train: floating-point operations of each layer kind, or measured seconds.

Conventions: a multiply-add is 2 operations; attention is causal, so token i sees i keys.

Sources: matrix products, and their backward pass at twice the forward, Narayanan et al. 2021
(Megatron-LM), appendix; backward of attention at 2.5 times its forward (it recomputes the scores),
Dao 2023 (FlashAttention-2), section 4; zigzag context parallelism, which gives every rank the same
pairs of each sample out of 2 * ranks chunks, Llama 3 report, section 3.3.2. Those of the layer
kinds stand in `attention_shape`. Embedding look-ups, norms and activations are left out: they are
linear in tokens and below a percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from miles_periodic.hooks.alignment import zigzag_multiple
from miles_periodic.plugins.cost_aware_packing.model_shape import ModelShape

MATRIX_BACKWARD = 2.0
"""Backward over forward of a matrix product: gradients of its input and of its weight."""

ATTENTION_BACKWARD = 2.5
"""Backward over forward of attention: five products against two."""


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
class MeasuredMicroBatch:
    """Seconds that a micro-batch of samples with `lengths` tokens took, forward and backward."""

    lengths: tuple[int, ...]
    seconds: float

    @property
    def slots(self) -> tuple[tuple[int, ...], ...]:
        return (self.lengths,)


@dataclass(frozen=True)
class MeasuredStep:
    """Seconds that a step took, all its slots one after the other, forward and backward.

    `slots[slot]` are the lengths of the micro-batch that the others waited for, the dearest one.
    """

    slots: tuple[tuple[int, ...], ...]
    seconds: float

    @classmethod
    def from_micro_batches(
        cls,
        microbatches: Sequence[Sequence[Sequence[int]]],
        lengths: Sequence[int],
        cost: Sequence[float] | np.ndarray,
        seconds: float,
    ) -> MeasuredStep:
        """Of a step's `microbatches[rank][slot]` with sample indices into `lengths` and `cost`."""
        costs = np.asarray(cost, dtype=np.float64)
        waited_for = [
            max(slot, key=lambda micro_batch: float(costs[list(micro_batch)].sum()))
            for slot in zip(*microbatches, strict=True)
        ]
        slots = tuple(tuple(int(lengths[i]) for i in micro_batch) for micro_batch in waited_for)
        return cls(slots, seconds)


@dataclass(frozen=True)
class CostModel:
    """Cost of a sample: a part linear in its tokens and one per (query, key) pair.

    Attributes:
        linear: cost per token.
        attention: costs per pair; empty for a model without attention.
        per_micro_batch: cost of a micro-batch beyond its samples (seconds of launch and exchange).
        pad_multiple: lengths are rounded up to a multiple of this before anything is counted.
        unit: "FLOPs" or "seconds".
    """

    linear: float
    attention: tuple[AttentionTerm, ...] = ()
    per_micro_batch: float = 0.0
    pad_multiple: int = 1
    unit: str = "FLOPs"

    @classmethod
    def from_config(
        cls,
        config: object,
        *,
        recompute: bool = False,
        context_parallel_size: int = 1,
        pad_multiple: int | None = None,
    ) -> CostModel:
        """FLOPs of forward and backward for a model described by `config`.

        `config` is a mapping or an object with the names of a Hugging Face config, of Megatron's
        arguments or of its `TransformerConfig`. With `recompute` the forward of every layer runs
        again in the backward. `context_parallel_size` ranks share every sample evenly, so costs
        are those of one of them; `pad_multiple` is by default what zigzag chunks need, twice
        their number, and 1 without context parallelism. Tensor parallelism changes no ratio.

        Raises `ValueError` for names that are missing or layer kinds unknown.
        """
        shape = ModelShape.from_config(config)
        again = 1.0 if recompute else 0.0
        matrix, attention = 1.0 + MATRIX_BACKWARD + again, 1.0 + ATTENTION_BACKWARD + again
        per_token = matrix * shape.forward_flops_per_token()
        terms = [
            AttentionTerm(attention * flops / context_parallel_size, window)
            for window, flops in shape.attention.flops_per_pair().items()
        ]
        if (indexer := shape.attention.indexer) is not None:
            passes = matrix if indexer.is_trained else 1.0 + again
            per_token += indexer.num_layers * passes * indexer.per_token
            pairs = passes * indexer.per_pair + indexer.target_per_pair
            terms.append(AttentionTerm(indexer.num_layers * pairs / context_parallel_size))
        if pad_multiple is None:
            pad_multiple = zigzag_multiple(context_parallel_size)
        return cls(per_token / context_parallel_size, tuple(terms), 0.0, pad_multiple)

    def sample_costs(self, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
        """Cost of each sample of `lengths` tokens, float64 [samples]."""
        padded = self.padded_lengths(lengths).astype(np.float64)
        return self.linear * padded + self._attention_costs(padded)

    def padded_lengths(self, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
        """Tokens of each sample as the trainer computes them, int64 [samples]."""
        whole = np.asarray(lengths, dtype=np.int64)
        return -(-whole // self.pad_multiple) * self.pad_multiple

    def micro_batch_cost(self, lengths: Sequence[int] | np.ndarray) -> float:
        """Cost of one micro-batch of samples with `lengths` tokens."""
        return float(self.sample_costs(lengths).sum()) + self.per_micro_batch

    def fit(self, measured: Sequence[MeasuredMicroBatch | MeasuredStep]) -> CostModel:
        """The same shapes, in seconds: linear part, attention part and a constant are scaled.

        The three scales are the non-negative ones with the least squared relative error; the
        constant is that of one micro-batch. Raises `ValueError` for fewer than 3 measurements,
        for seconds that are not positive, or for measurements too alike to tell anything.
        """
        _check_measured(measured)
        seconds = np.array([one.seconds for one in measured])
        features = np.array([self._features(one.slots) for one in measured]) / seconds[:, None]
        linear, attention, constant = _non_negative_fit(features)
        return replace(
            self,
            linear=self.linear * linear,
            attention=tuple(
                replace(term, flops_per_pair=term.flops_per_pair * attention)
                for term in self.attention
            ),
            per_micro_batch=constant,
            unit="seconds",
        )

    def _attention_costs(self, padded: np.ndarray) -> np.ndarray:
        costs = np.zeros_like(padded)
        for term in self.attention:
            costs += term.flops_per_pair * term.pairs(padded)
        return costs

    def _features(self, slots: Sequence[Sequence[int]]) -> tuple[float, float, float]:
        padded = self.padded_lengths([length for slot in slots for length in slot])
        padded = padded.astype(np.float64)
        return self.linear * padded.sum(), self._attention_costs(padded).sum(), float(len(slots))


def _check_measured(measured: Sequence[MeasuredMicroBatch | MeasuredStep]) -> None:
    if len(measured) < 3:
        raise ValueError(f"{len(measured)} measurements: pass 3 or more")
    for position, one in enumerate(measured):
        lengths = [length for slot in one.slots for length in slot]
        if not (lengths and min(lengths) >= 1 and 0 < one.seconds < float("inf")):
            raise ValueError(f"measurement {position} is {one}: drop it")


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
            "the measurements do not show how time grows with length: "
            "measure some with few long samples and some with many short ones"
        )
    return best
