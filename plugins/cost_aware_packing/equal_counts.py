"""Give bins to ranks so that all train the same number of samples, as far as the cap allows."""

from __future__ import annotations

import numpy as np

from miles_periodic.plugins.cost_aware_packing.problem import StepProblem, bin_costs


class RankGrid:
    """Bins laid out as `bins[slot, rank]`, with the running sums that transfers change."""

    def __init__(self, problem: StepProblem, bin_of_sample: np.ndarray, num_slots: int) -> None:
        num_bins = num_slots * problem.num_ranks
        self.problem = problem
        self.bin_of_sample = bin_of_sample.copy()
        self.costs = bin_costs(problem, bin_of_sample, num_bins)
        self.tokens = np.bincount(bin_of_sample, weights=problem.lengths, minlength=num_bins)
        self.counts = np.bincount(bin_of_sample, minlength=num_bins)
        self.bins = np.argsort(-self.costs, kind="stable").reshape(num_slots, problem.num_ranks)

    def rank_counts(self) -> np.ndarray:
        """Samples per rank, int64 [ranks]."""
        return self.counts[self.bins].sum(axis=0)

    def swap_ranks(self, slot: int, first: int, second: int) -> None:
        self.bins[slot, [first, second]] = self.bins[slot, [second, first]]

    def move(self, sample: int, target: int) -> None:
        source = self.bin_of_sample[sample]
        for bin_index, sign in ((source, -1), (target, 1)):
            self.costs[bin_index] += sign * self.problem.costs[sample]
            self.tokens[bin_index] += sign * self.problem.lengths[sample]
            self.counts[bin_index] += sign
        self.bin_of_sample[sample] = target

    def microbatches(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Samples as `[rank][slot]`."""
        members = [np.flatnonzero(self.bin_of_sample == b) for b in range(self.bins.size)]
        return tuple(
            tuple(tuple(members[bin_index].tolist()) for bin_index in column)
            for column in self.bins.T
        )


def level_counts(
    problem: StepProblem, bin_of_sample: np.ndarray, num_slots: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Micro-batches `[rank][slot]`, slots from the dearest to the cheapest.

    First bins change ranks inside their slot, which costs nothing; then single samples change
    bins. Where neither helps any more, the counts stay unequal.
    """
    grid = RankGrid(problem, bin_of_sample, num_slots)
    _place_large_counts_first(grid)
    while True:
        counts = grid.rank_counts()
        if counts.max() - counts.min() <= (1 if problem.num_samples % problem.num_ranks else 0):
            break
        most, fewest = int(counts.argmax()), int(counts.argmin())
        if not (_swap_bins(grid, most, fewest) or _move_sample(grid, most, fewest)):
            break
    return grid.microbatches()


def _place_large_counts_first(grid: RankGrid) -> None:
    """Slot by slot, the rank with the fewest samples takes the bin with the most."""
    totals = np.zeros(grid.problem.num_ranks, dtype=np.int64)
    spread = np.ptp(grid.counts[grid.bins], axis=1)
    for slot in np.argsort(-spread, kind="stable").tolist():
        bins = grid.bins[slot]
        largest_first = bins[np.argsort(-grid.counts[bins], kind="stable")]
        grid.bins[slot, np.argsort(totals, kind="stable")] = largest_first
        totals += grid.counts[grid.bins[slot]]


def _swap_bins(grid: RankGrid, most: int, fewest: int) -> bool:
    """Swap the two ranks' bins in the slot that brings their counts closest together."""
    counts = grid.rank_counts()
    gap = int(counts[most] - counts[fewest])
    surplus = grid.counts[grid.bins[:, most]] - grid.counts[grid.bins[:, fewest]]
    slot = int(np.abs(gap - 2 * surplus).argmin())
    if abs(gap - 2 * surplus[slot]) >= gap:
        return False
    grid.swap_ranks(slot, most, fewest)
    return True


def _move_sample(grid: RankGrid, most: int, fewest: int) -> bool:
    """Move the sample that adds least slot time from a bin of `most` to a bin of `fewest`."""
    problem = grid.problem
    sources = grid.bins[:, most]
    shared = sources[grid.counts[sources] > 1]
    samples = np.flatnonzero(np.isin(grid.bin_of_sample, shared))
    targets = grid.bins[:, fewest]
    fits = grid.tokens[targets] + problem.lengths[samples][:, None] <= problem.token_cap
    fits &= grid.counts[targets] < problem.sample_cap
    if not fits.any():
        return False
    slot_tops = grid.costs[grid.bins].max(axis=1)
    growth = grid.costs[targets] + problem.costs[samples][:, None] - slot_tops
    penalty = np.where(fits, np.maximum(growth, 0.0), np.inf)
    row, column = np.unravel_index(penalty.argmin(), penalty.shape)
    grid.move(int(samples[row]), int(targets[column]))
    return True
