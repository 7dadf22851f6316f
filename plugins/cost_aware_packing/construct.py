"""First packings: longest-processing-time-first up to a level per slot; first-fit where tight."""

from __future__ import annotations

import numpy as np

from miles_periodic.plugins.cost_aware_packing.problem import StepProblem


def slot_levels(
    problem: StepProblem, dearest_first: np.ndarray, num_slots: int, num_stacked: int = 0
) -> np.ndarray:
    """Cost that each slot's bins should reach, float64 [slots].

    A slot cannot be cheaper than its dearest sample and need not be dearer than an equal share of
    what is left, so the dearest samples open slots of their own height and the rest is level.
    The first `num_stacked` slots are instead planned for as many of the dearest samples as they
    can hold: several dear samples in a bin make like sums where single ones differ.
    """
    costs = problem.costs[dearest_first]
    spent = np.concatenate([[0.0], np.cumsum(costs)])
    remaining = total = float(spent[-1])
    levels = np.zeros(num_slots)
    first = 0
    for slot in range(num_slots):
        if first >= len(costs):
            break
        if slot < num_stacked:
            stop = _stack_end(problem, problem.lengths[dearest_first], first)
            share = float(spent[stop] - spent[first]) / problem.num_ranks
        else:
            share = remaining / (problem.num_ranks * (num_slots - slot))
        levels[slot] = max(share, costs[first])
        remaining = max(0.0, remaining - problem.num_ranks * levels[slot])
        first = int(np.searchsorted(spent, total - remaining))
    return levels


def _stack_end(problem: StepProblem, lengths: np.ndarray, first: int) -> int:
    """Position behind the last sample that one slot can hold if it takes them in order."""
    tokens = np.cumsum(lengths[first:])
    by_tokens = np.searchsorted(tokens, problem.num_ranks * problem.token_cap, side="right")
    return first + min(int(by_tokens), problem.num_ranks * problem.sample_cap)


def fill_to_level(problem: StepProblem, num_slots: int, num_stacked: int = 0) -> np.ndarray | None:
    """Bin of each sample, int64 [samples], or None where a sample finds no bin with room.

    Dearest sample first, each into the bin that is furthest below its slot's level. The last
    samples are kept for the bins that are still empty, so that none stays so.
    """
    num_bins = num_slots * problem.num_ranks
    order = np.lexsort((-problem.lengths, -problem.costs))
    levels = slot_levels(problem, order, num_slots, num_stacked)
    headroom = np.repeat(levels, problem.num_ranks)
    free_tokens = np.full(num_bins, problem.token_cap, dtype=np.int64)
    count = np.zeros(num_bins, dtype=np.int64)
    num_empty = num_bins
    bin_of_sample = np.empty(problem.num_samples, dtype=np.int64)
    for position, sample in enumerate(order.tolist()):
        length = problem.lengths[sample]
        must_open = problem.num_samples - position <= num_empty
        allowed = count == 0 if must_open else free_tokens >= length
        target = int(np.where(allowed, headroom, -np.inf).argmax())
        if not allowed[target]:
            return None
        bin_of_sample[sample] = target
        num_empty -= int(count[target] == 0)
        count[target] += 1
        headroom[target] -= problem.costs[sample]
        free_tokens[target] -= length
        if count[target] == problem.sample_cap:
            free_tokens[target] = -1
    return bin_of_sample


def first_fit_decreasing(problem: StepProblem) -> np.ndarray:
    """Bin of each sample, longest first into the first bin with room, int64 [samples].

    Needs few bins where the caps are tight; cost plays no part.
    """
    free_tokens = np.full(problem.num_samples, problem.token_cap, dtype=np.int64)
    count = np.zeros(problem.num_samples, dtype=np.int64)
    bin_of_sample = np.empty(problem.num_samples, dtype=np.int64)
    for sample in np.argsort(-problem.lengths, kind="stable").tolist():
        target = int((free_tokens >= problem.lengths[sample]).argmax())
        bin_of_sample[sample] = target
        free_tokens[target] -= problem.lengths[sample]
        count[target] += 1
        if count[target] == problem.sample_cap:
            free_tokens[target] = -1
    return bin_of_sample


def split_to_count(problem: StepProblem, bin_of_sample: np.ndarray, num_bins: int) -> np.ndarray:
    """Open bins up to `num_bins`, each with the dearest sample of the dearest shared bin."""
    split = bin_of_sample.copy()
    for new_bin in range(int(split.max()) + 1, num_bins):
        shared = np.bincount(split, minlength=num_bins) > 1
        costs = np.bincount(split, weights=problem.costs, minlength=num_bins)
        members = np.flatnonzero(split == np.where(shared, costs, -1.0).argmax())
        split[members[problem.costs[members].argmax()]] = new_bin
    return split
