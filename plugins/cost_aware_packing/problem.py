"""One optimizer step to pack, as arrays, and what its bins hold while they are being filled.

A bin is a micro-batch that has no rank yet. Slot s takes the bins that rank s * R to s * R + R - 1
in descending cost (R ranks): for given bins no other grouping has a lower slot time, because the
maxima of any groups of R, sorted, are at least the 1st, R + 1st, 2R + 1st ... dearest bin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepProblem:
    """Samples of one step and the rules for their bins.

    Attributes:
        lengths: tokens per sample, int64 [samples].
        costs: cost per sample, float64 [samples].
        num_ranks: data-parallel ranks: bins per slot.
        max_tokens: most tokens in a bin; None for no cap.
        slot_multiple: the number of slots is a multiple of this.
        samples_per_bin: exact number of samples in each bin; None for any number from 1.
        max_samples: most samples in a bin; None for no cap. Not together with `samples_per_bin`.
    """

    lengths: np.ndarray
    costs: np.ndarray
    num_ranks: int
    max_tokens: int | None = None
    slot_multiple: int = 1
    samples_per_bin: int | None = None
    max_samples: int | None = None

    @property
    def num_samples(self) -> int:
        return len(self.lengths)

    @property
    def token_cap(self) -> int:
        """`max_tokens`, or a number that no bin can exceed."""
        return int(self.lengths.sum()) if self.max_tokens is None else self.max_tokens

    @property
    def sample_cap(self) -> int:
        """Most samples in a bin."""
        return self.samples_per_bin or self.max_samples or self.num_samples

    @property
    def fewest_slots(self) -> int:
        """Slots below which the tokens or the samples cannot fit."""
        bins_by_tokens = -(-int(self.lengths.sum()) // self.token_cap)
        bins_by_samples = -(-self.num_samples // self.sample_cap)
        slots = -(-max(bins_by_tokens, bins_by_samples) // self.num_ranks)
        return -(-slots // self.slot_multiple) * self.slot_multiple

    @property
    def most_slots(self) -> int:
        """Slots above which some bin would be empty (or short of its exact sample count)."""
        slots = self.num_samples // (self.num_ranks * (self.samples_per_bin or 1))
        return slots // self.slot_multiple * self.slot_multiple


def bin_costs(problem: StepProblem, bin_of_sample: np.ndarray, num_bins: int) -> np.ndarray:
    """Cost of each bin, float64 [bins]."""
    return np.bincount(bin_of_sample, weights=problem.costs, minlength=num_bins)


def slot_time_of_bins(costs: np.ndarray, num_ranks: int) -> float:
    """Slot time when bins of `costs` [slots * ranks] are grouped by descending cost."""
    return float(np.sort(costs)[::-1][::num_ranks].sum())
