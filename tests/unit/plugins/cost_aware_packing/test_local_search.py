from __future__ import annotations

import time

import numpy as np

from miles_periodic.plugins.cost_aware_packing.local_search import (
    BinState,
    Exchange,
    Limit,
    best_exchange,
    improve,
)
from miles_periodic.plugins.cost_aware_packing.problem import (
    StepProblem,
    bin_costs,
    slot_time_of_bins,
)


def make_problem(lengths, num_ranks, max_tokens, **rules) -> StepProblem:
    array = np.array(lengths)
    return StepProblem(array, array.astype(np.float64), num_ranks, max_tokens, **rules)


def find_exchange(problem, bin_of_sample, num_bins) -> Exchange | None:
    state = BinState(problem, np.array(bin_of_sample), num_bins)
    return best_exchange(state, 0, np.random.default_rng(0))


def test_a_move_that_levels_two_bins_is_found():
    assert find_exchange(make_problem([2, 2, 2, 2], 2, 9), [0, 0, 0, 1], 2) == Exchange(0, 1, -1)


def test_a_swap_is_found_where_a_sample_count_is_fixed():
    problem = make_problem([5, 4, 2, 1], 2, 9, samples_per_bin=2)
    exchange = find_exchange(problem, [0, 0, 1, 1], 2)
    assert exchange is not None and exchange.taken >= 0


def test_no_exchange_breaks_the_cap():
    problem = StepProblem(np.array([4, 1, 5]), np.array([6.0, 3.0, 2.0]), 2, 5)
    assert find_exchange(problem, [0, 0, 1], 2) is None


def test_the_last_sample_of_a_bin_is_not_given_away():
    assert find_exchange(make_problem([5, 1], 2, 9), [0, 1], 2) is None


def test_applying_an_exchange_keeps_the_running_sums_right():
    problem = make_problem([5, 4, 2, 1], 2, 12)
    state = BinState(problem, np.array([0, 0, 1, 1]), 2)
    state.apply(Exchange(given=0, target=1, taken=2))
    fresh = BinState(problem, state.bin_of_sample, 2)
    assert state.bin_of_sample.tolist() == [1, 0, 0, 1]
    assert state.slot_time == fresh.slot_time == 6.0
    assert state.tokens.tolist() == fresh.tokens.tolist()
    assert state.counts.tolist() == fresh.counts.tolist()


def test_a_search_that_is_not_cut_by_its_deadline_gives_the_same_packing_twice():
    problem = make_problem([9, 7, 6, 5, 4, 3, 3, 2, 2, 1], 2, 12)
    start = np.array([0, 1, 2, 3, 1, 2, 3, 2, 3, 0])
    later = time.monotonic() + 3600
    first, second = (
        improve(problem, start, 2, floor=21.0, limit=Limit(deadline=later), seed=1)
        for _ in range(2)
    )
    assert first.tolist() == second.tolist()


def test_a_deadline_that_has_passed_leaves_the_packing_as_it_is():
    problem = make_problem([3, 1, 2], 2, 9)
    start = np.array([0, 0, 1])
    assert improve(problem, start, 1, floor=3.0, limit=Limit(deadline=0.0), seed=0).tolist() == [
        0,
        0,
        1,
    ]


def test_a_number_of_exchanges_ends_the_search_and_makes_it_repeatable():
    costs = np.arange(40, dtype=np.float64) ** 2
    problem = StepProblem(np.ones(40, dtype=np.int64), costs, 4, max_tokens=8)
    start = np.arange(40) % 8
    found = [
        improve(problem, start, 2, floor=0.0, limit=Limit(num_exchanges=count), seed=0).tolist()
        for count in (0, 5, 5)
    ]
    assert found[0] == start.tolist()
    assert found[1] == found[2] != found[0]


def test_more_exchanges_never_make_a_packing_worse():
    costs = np.arange(40, dtype=np.float64) ** 2
    problem = StepProblem(np.ones(40, dtype=np.int64), costs, 4, max_tokens=8)
    times = [
        slot_time_of_bins(
            bin_costs(
                problem,
                improve(
                    problem,
                    np.arange(40) % 8,
                    2,
                    floor=0.0,
                    limit=Limit(num_exchanges=count),
                    seed=0,
                ),
                8,
            ),
            4,
        )
        for count in (0, 1, 5, 20, 100)
    ]
    assert times == sorted(times, reverse=True) and times[-1] < times[0]
