from __future__ import annotations

import numpy as np

from miles_periodic.plugins.cost_aware_packing.equal_counts import level_counts
from miles_periodic.plugins.cost_aware_packing.problem import StepProblem


def make_problem(lengths, num_ranks, max_tokens) -> StepProblem:
    array = np.array(lengths)
    return StepProblem(array, array.astype(np.float64), num_ranks, max_tokens)


def counts_of(ranks) -> list[int]:
    return [sum(map(len, rank)) for rank in ranks]


def test_bins_change_ranks_before_any_sample_changes_its_bin():
    problem = make_problem([8, 4, 4, 7, 3, 4], 2, 8)
    ranks = level_counts(problem, np.array([0, 1, 1, 2, 3, 3]), 2)
    assert counts_of(ranks) == [3, 3]
    assert {frozenset(bin_) for rank in ranks for bin_ in rank} == {
        frozenset({0}),
        frozenset({1, 2}),
        frozenset({3}),
        frozenset({4, 5}),
    }


def test_a_sample_changes_its_bin_where_changing_ranks_is_not_enough():
    problem = make_problem([6, 1, 1, 1], 2, 9)
    assert counts_of(level_counts(problem, np.array([0, 1, 1, 1]), 1)) == [2, 2]


def test_counts_stay_unequal_where_the_cap_leaves_no_room():
    problem = make_problem([9, 3, 3, 3], 2, 9)
    assert sorted(counts_of(level_counts(problem, np.array([0, 1, 1, 1]), 1))) == [1, 3]


def test_counts_that_do_not_divide_differ_by_at_most_one():
    problem = make_problem([2, 2, 2, 2, 2], 2, 10)
    assert sorted(counts_of(level_counts(problem, np.array([0, 1, 1, 1, 1]), 1))) == [2, 3]
