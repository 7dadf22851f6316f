"""Pack samples into micro-batches under a token cap, and line the ranks up slot by slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice

import numpy as np

from miles_periodic.plugins.cost_aware_packing.construct import (
    fill_to_level,
    first_fit_decreasing,
    split_to_count,
)
from miles_periodic.plugins.cost_aware_packing.fold import foldings
from miles_periodic.plugins.cost_aware_packing.local_search import Limit, improve
from miles_periodic.plugins.cost_aware_packing.lower_bound import lower_bound
from miles_periodic.plugins.cost_aware_packing.problem import (
    StepProblem,
    bin_costs,
    slot_time_of_bins,
)
from miles_periodic.plugins.cost_aware_packing.schedule import (
    RankMicroBatches,
    Schedule,
    slot_time,
)
from miles_periodic.plugins.cost_aware_packing.steps import assign_steps
from miles_periodic.plugins.cost_aware_packing.validation import (
    check_at_least_one,
    check_cap,
    check_enough_samples,
    checked_samples,
    refuse_empty_bins,
)

NUM_SLOT_COUNTS_COMPARED = 2
CLOSE_RATIO = 1.01
WORTH_A_SLOT = 1.005
FEWEST_TRIES = 2
MOST_SAMPLES_FILLED = 20_000
MOST_SAMPLES_EXCHANGED = 100_000
FEWEST_EXCHANGES = 8

StepPlan = tuple[RankMicroBatches, ...]
ArrangeRanks = Callable[[StepProblem, np.ndarray, int], StepPlan]


def pack(
    lengths: Sequence[int] | np.ndarray,
    *,
    cost: Sequence[float] | np.ndarray,
    max_tokens: int,
    data_parallel_size: int,
    slot_multiple: int = 1,
    groups: Sequence[Hashable] | None = None,
    steps: int | Sequence[int] | None = None,
    time_budget: float = 0.2,
    seed: int = 0,
) -> Schedule:
    """Plan micro-batches so that data-parallel ranks wait for each other as little as possible.

    Args:
        lengths: tokens per sample, padding included, [samples], each from 1 to `max_tokens`.
        cost: cost per sample, [samples], finite and not negative; a micro-batch costs the sum of
            its samples.
        max_tokens: most tokens in a micro-batch (per GPU cap times context-parallel size).
        data_parallel_size: number of ranks.
        slot_multiple: each step's number of slots is a multiple of this (virtual pipeline).
        groups: a key per sample; samples of one group (a rollout) stay in one step.
        steps: None for one optimizer step, the number of steps, or the step of each sample; see
            `steps.assign_steps`. Samples never change their step.
        time_budget: seconds of local search over all steps together. With 0 it makes a fixed number
            of exchanges instead, fewer the more samples there are, and the result depends on the
            arguments alone.
        seed: of the local search.

    Raises:
        ValueError: a length below 1 or over the cap, a cost that is negative or not finite, fewer
            samples in a step than ranks times `slot_multiple`, steps that split a group, or no
            packing found under the cap without an empty micro-batch. Each says what to change.
    """
    lengths_array, costs = checked_samples(lengths, cost)
    check_at_least_one(
        max_tokens=max_tokens, data_parallel_size=data_parallel_size, slot_multiple=slot_multiple
    )
    check_cap(lengths_array, max_tokens)
    problems = [
        (
            samples,
            StepProblem(
                lengths_array[samples],
                costs[samples],
                int(data_parallel_size),
                int(max_tokens),
                int(slot_multiple),
            ),
        )
        for samples in samples_of_steps(assign_steps(len(lengths_array), groups, steps))
    ]
    return plan_steps(problems, costs, time_budget=time_budget, seed=seed, arrange=level_ranks)


def plan_steps(
    problems: Sequence[tuple[np.ndarray, StepProblem]],
    costs: np.ndarray,
    *,
    time_budget: float,
    seed: int,
    arrange: ArrangeRanks,
) -> Schedule:
    """One schedule from several steps, each given as (sample indices, problem).

    The search time that one step leaves over goes to the steps after it.
    """
    if not 0 <= time_budget < float("inf"):
        raise ValueError(f"time_budget is {time_budget}: pass seconds, 0 or more")
    seconds_left, bound, plans = time_budget, 0.0, []
    for position, (samples, problem) in enumerate(problems):
        check_enough_samples(problem)
        floor = lower_bound(problem)
        bins, num_slots = _first_packing(problem, floor)
        start = time.monotonic()
        share = seconds_left / (len(problems) - position)
        limit = Limit(deadline=start + share) if time_budget else _limit_without_clock(problem)
        bins = improve(problem, bins, num_slots, floor=floor, limit=limit, seed=seed)
        seconds_left = max(0.0, seconds_left - (time.monotonic() - start))
        bound += floor
        plans.append(_renamed(arrange(problem, bins, num_slots), samples))
    microbatches = tuple(
        tuple(micro_batch for plan in plans for micro_batch in plan[rank])
        for rank in range(len(plans[0]))
    )
    found = slot_time(microbatches, costs)
    # The bound is proved; where the two are equal, rounding must not put it above.
    return Schedule(microbatches, found, min(bound, found), tuple(len(plan[0]) for plan in plans))


def _limit_without_clock(problem: StepProblem) -> Limit:
    """As many exchanges as help, and no more than are quick, for each looks at every sample."""
    affordable = MOST_SAMPLES_EXCHANGED // problem.num_samples
    useful = problem.num_samples // 4
    return Limit(num_exchanges=max(FEWEST_EXCHANGES, min(affordable, useful)))


def samples_of_steps(step_of_sample: np.ndarray) -> list[np.ndarray]:
    """Indices of each step's samples, in order, int64 [samples of the step]; always one step."""
    if not len(step_of_sample):
        return [np.empty(0, dtype=np.int64)]
    return [np.flatnonzero(step_of_sample == step) for step in range(int(step_of_sample.max()) + 1)]


def level_ranks(problem: StepProblem, bin_of_sample: np.ndarray, num_slots: int) -> StepPlan:
    """Give the bins of each slot to ranks so that the ranks' totals stay level, too.

    Slots run from the dearest to the cheapest. The rank with the least so far takes the dearest.
    """
    num_bins = num_slots * problem.num_ranks
    costs = bin_costs(problem, bin_of_sample, num_bins)
    members = members_of_bins(bin_of_sample, num_bins)
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(problem.num_ranks)]
    totals = np.zeros(problem.num_ranks)
    for bins in np.argsort(-costs, kind="stable").reshape(num_slots, -1):
        for rank, bin_index in zip(np.argsort(totals, kind="stable"), bins, strict=True):
            rows[rank].append(members[bin_index])
            totals[rank] += costs[bin_index]
    return tuple(tuple(row) for row in rows)


def members_of_bins(bin_of_sample: np.ndarray, num_bins: int) -> list[tuple[int, ...]]:
    """Samples of each bin in ascending order."""
    order = np.argsort(bin_of_sample, kind="stable")
    bounds = np.searchsorted(bin_of_sample[order], np.arange(num_bins + 1))
    return [
        tuple(order[start:stop].tolist()) for start, stop in zip(bounds, bounds[1:], strict=False)
    ]


def _first_packing(problem: StepProblem, floor: float) -> tuple[np.ndarray, int]:
    """Bin of each sample and number of slots, by the best of several constructions.

    Merging two slots never adds slot time, so more slots than the cap asks for rarely help; one
    count more is compared because a full cap leaves no choice of what goes where, and taken if it
    gains half a percent, for each slot has costs of its own that no sample shows.
    """
    best: tuple[float, int, np.ndarray] | None = None
    num_slots, stride, num_fit = problem.fewest_slots, problem.slot_multiple, 0
    while num_slots <= problem.most_slots and num_fit < NUM_SLOT_COUNTS_COMPARED:
        filled = _best_filling(problem, num_slots, floor)
        if filled is not None:
            num_fit += 1
            if best is None or filled[0] * WORTH_A_SLOT < best[0]:
                best = filled
            if best[0] <= CLOSE_RATIO * floor:
                break
        elif num_slots > problem.fewest_slots:
            stride *= 2
        num_slots += stride
    return _tight_packing(problem) if best is None else (best[2], best[1])


def _best_filling(
    problem: StepProblem, num_slots: int, floor: float
) -> tuple[float, int, np.ndarray] | None:
    """Slot time, `num_slots` and bin of each sample, or None where the cap is too tight."""
    best: tuple[float, int, np.ndarray] | None = None
    for bins in _fillings(problem, num_slots):
        costs = bin_costs(problem, bins, num_slots * problem.num_ranks)
        found = slot_time_of_bins(costs, problem.num_ranks)
        if best is None or found < best[0]:
            best = (found, num_slots, bins)
        if found <= CLOSE_RATIO * floor:
            break
    return best


def _fillings(problem: StepProblem, num_slots: int) -> Iterator[np.ndarray]:
    """Bin of each sample, in several ways, the fewer the more samples there are."""
    num_tries = max(FEWEST_TRIES, MOST_SAMPLES_FILLED // problem.num_samples)
    if problem.samples_per_bin == 2 and problem.max_tokens is None:
        yield from islice(foldings(problem), num_tries)
    for num_stacked in _stack_counts(num_slots)[:num_tries]:
        bins = fill_to_level(problem, num_slots, num_stacked)
        if bins is None:
            return
        yield bins


def _stack_counts(num_slots: int) -> list[int]:
    """How many slots to stack, in the order of trying: none, 1, 2, 4 ... and all."""
    doubled = [1 << power for power in range(num_slots.bit_length())]
    return [0, *(count for count in doubled if count < num_slots), num_slots]


def _tight_packing(problem: StepProblem) -> tuple[np.ndarray, int]:
    bins = first_fit_decreasing(problem)
    slots_needed = -(-(int(bins.max()) + 1) // problem.num_ranks)
    num_slots = -(-slots_needed // problem.slot_multiple) * problem.slot_multiple
    if num_slots > problem.most_slots:
        refuse_empty_bins(problem, num_slots)
    return split_to_count(problem, bins, num_slots * problem.num_ranks), num_slots


def _renamed(plan: StepPlan, samples: np.ndarray) -> StepPlan:
    """The plan with the step's own sample numbers replaced by those of the batch."""
    return tuple(tuple(tuple(samples[list(bin_)].tolist()) for bin_ in rank) for rank in plan)
