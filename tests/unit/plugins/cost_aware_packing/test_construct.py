from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.cost_aware_packing.construct import (
    fill_to_level,
    first_fit_decreasing,
    slot_levels,
    split_to_count,
)
from miles_periodic.plugins.cost_aware_packing.problem import StepProblem


def make_problem(lengths, num_ranks=1, max_tokens=10) -> StepProblem:
    array = np.array(lengths)
    return StepProblem(array, array.astype(np.float64), num_ranks, max_tokens)


def test_slots_without_giants_share_the_cost_evenly():
    assert slot_levels(np.array([3.0, 3.0, 3.0, 3.0]), 2, 2).tolist() == [3.0, 3.0]


def test_a_giant_raises_the_level_of_its_own_slot_only():
    costs = np.array([10.0] + [1.0] * 30)
    assert slot_levels(costs, 2, 3).tolist() == [10.0, 5.0, 5.0]


@given(lengths=st.lists(st.integers(1, 10), min_size=6, max_size=40), ranks=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_filled_bins_are_never_empty_and_never_over_the_cap(lengths, ranks):
    problem = make_problem(lengths, ranks)
    num_slots = max(problem.fewest_slots, 2)
    if num_slots > problem.most_slots:
        return
    bins = fill_to_level(problem, num_slots)
    if bins is not None:
        assert np.bincount(bins, minlength=num_slots * ranks).min() >= 1
        assert np.bincount(bins, weights=lengths).max() <= 10


def test_a_sample_without_room_is_answered_with_none():
    assert fill_to_level(make_problem([6, 6, 6], num_ranks=2), 1) is None


def test_first_fit_decreasing_fills_bins_to_the_cap():
    bins = first_fit_decreasing(make_problem([6, 4, 3, 7]))
    assert np.bincount(bins, weights=[6, 4, 3, 7]).tolist() == [10, 10]


def test_splitting_opens_the_missing_bins():
    bins = split_to_count(make_problem([6, 4, 3, 7]), np.array([0, 0, 1, 1]), 4)
    assert sorted(bins.tolist()) == [0, 1, 2, 3]
