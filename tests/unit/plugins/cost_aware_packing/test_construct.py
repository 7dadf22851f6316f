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


def levels_of(costs, num_ranks, num_slots, num_stacked=0) -> list[float]:
    problem = StepProblem(np.ones(len(costs), dtype=np.int64), np.array(costs), num_ranks, 2)
    order = np.argsort(-problem.costs, kind="stable")
    return slot_levels(problem, order, num_slots, num_stacked).tolist()


def test_slots_without_giants_share_the_cost_evenly():
    assert levels_of([3.0, 3.0, 3.0, 3.0], 2, 2) == [3.0, 3.0]


def test_a_giant_raises_the_level_of_its_own_slot_only():
    assert levels_of([10.0] + [1.0] * 30, 2, 3) == [10.0, 5.0, 5.0]


def test_a_stacked_slot_takes_as_many_dear_samples_as_it_holds():
    assert levels_of([7.0, 7.0, 7.0, 7.0, 1.0, 1.0], 2, 2, num_stacked=1) == [14.0, 1.0]


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
