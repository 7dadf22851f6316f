"""First packings into bins of exactly two samples: the dearest of a block with its cheapest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from miles_periodic.plugins.cost_aware_packing.problem import StepProblem


def foldings(problem: StepProblem) -> Iterator[np.ndarray]:
    """Bin of each sample, int64 [samples], one packing after another, for two samples in a bin.

    The bins of the first slots hold dear samples only, but for the dearest ones, which take the
    cheapest of all for company; inside a block, folding makes like sums. How many slots those are
    and how many samples stay so alone differs between the packings.
    """
    num_slots = problem.fewest_slots
    dearest_first = np.argsort(-problem.costs, kind="stable")
    for num_folded_slots in (1 << power for power in range(num_slots.bit_length())):
        num_bins = num_folded_slots * problem.num_ranks
        for num_alone in range(num_bins + 1):
            bins = np.empty(problem.num_samples, dtype=np.int64)
            bins[dearest_first] = _bins_by_cost(problem, num_bins, num_alone)
            yield bins


def _bins_by_cost(problem: StepProblem, num_bins: int, num_alone: int) -> np.ndarray:
    """Bin of each sample in descending cost, int64 [samples]."""
    alone = np.arange(num_alone)
    dear = num_alone + _folded(num_bins - num_alone)
    num_blocks = (problem.num_samples // 2 - num_bins) // problem.num_ranks
    starts = num_bins + problem.num_ranks * np.arange(num_blocks)
    others = (starts[:, None] + _folded(problem.num_ranks)).ravel()
    return np.concatenate([alone, dear, others, alone[::-1]])


def _folded(num_bins: int) -> np.ndarray:
    """0, 1, 2 ... and back again, int64 [2 * bins]."""
    forth = np.arange(num_bins)
    return np.concatenate([forth, forth[::-1]])
