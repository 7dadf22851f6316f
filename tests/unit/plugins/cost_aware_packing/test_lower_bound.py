from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.cost_aware_packing.lower_bound import lower_bound
from miles_periodic.plugins.cost_aware_packing.problem import StepProblem, slot_time_of_bins

MAX_TOKENS = 12

tiny_samples = st.lists(
    st.tuples(st.integers(1, MAX_TOKENS), st.integers(0, 40)), min_size=1, max_size=7
)


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in set_partitions(items[1:]):
        yield [[items[0]], *rest]
        for position, block in enumerate(rest):
            yield [*rest[:position], [items[0], *block], *rest[position + 1 :]]


def optimal_slot_time(problem: StepProblem) -> float | None:
    """By trying every way to put the samples into bins; None where none keeps the rules."""
    best = None
    for bins in set_partitions(list(range(problem.num_samples))):
        if len(bins) % (problem.num_ranks * problem.slot_multiple):
            continue
        if any(problem.lengths[bin_].sum() > problem.token_cap for bin_ in bins):
            continue
        if problem.max_samples and any(len(b) > problem.max_samples for b in bins):
            continue
        if problem.samples_per_bin and any(len(b) != problem.samples_per_bin for b in bins):
            continue
        costs = np.array([problem.costs[bin_].sum() for bin_ in bins])
        found = slot_time_of_bins(costs, problem.num_ranks)
        best = found if best is None else min(best, found)
    return best


def make_problem(samples, **rules) -> StepProblem:
    lengths, costs = zip(*samples, strict=True)
    return StepProblem(np.array(lengths), np.array(costs, dtype=np.float64), **rules)


@given(samples=tiny_samples, ranks=st.integers(1, 3), multiple=st.integers(1, 2))
@example(samples=[(7, 9), (7, 8), (7, 7), (1, 1)], ranks=2, multiple=1)
@example(samples=[(6, 9), (6, 8), (4, 7), (4, 7), (4, 7)], ranks=1, multiple=1)
@settings(max_examples=400, deadline=None)
def test_no_schedule_under_the_cap_beats_the_bound(samples, ranks, multiple):
    problem = make_problem(samples, num_ranks=ranks, max_tokens=MAX_TOKENS, slot_multiple=multiple)
    optimum = optimal_slot_time(problem)
    assume(optimum is not None)
    assert lower_bound(problem) <= optimum * (1 + 1e-9)


@given(samples=tiny_samples, ranks=st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_no_schedule_of_samples_that_cost_their_square_beats_the_bound(samples, ranks):
    squares = [(length, length**2) for length, _ in samples]
    problem = make_problem(squares, num_ranks=ranks, max_tokens=MAX_TOKENS)
    optimum = optimal_slot_time(problem)
    assume(optimum is not None)
    assert lower_bound(problem) <= optimum * (1 + 1e-9)


@given(
    samples=st.lists(st.tuples(st.just(1), st.integers(0, 40)), min_size=6, max_size=6),
    ranks_and_count=st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 1), (3, 2), (3, 1), (1, 6)]),
)
@settings(max_examples=200, deadline=None)
def test_no_schedule_of_an_exact_sample_count_beats_the_bound(samples, ranks_and_count):
    ranks, count = ranks_and_count
    problem = make_problem(samples, num_ranks=ranks, samples_per_bin=count)
    assert lower_bound(problem) <= optimal_slot_time(problem) * (1 + 1e-9)


@given(
    costs=st.lists(st.integers(20, 40), min_size=5, max_size=8),
    ranks=st.integers(1, 2),
)
@example(costs=[40, 40, 39, 38, 20, 20, 20, 20], ranks=2)
@settings(max_examples=60, deadline=None)
def test_no_schedule_of_giants_of_which_two_fit_beats_the_bound(costs, ranks):
    problem = make_problem([(4, c) for c in costs], num_ranks=ranks, max_tokens=11)
    assert lower_bound(problem) <= optimal_slot_time(problem) * (1 + 1e-9)


@given(costs=st.lists(st.integers(0, 40), min_size=8, max_size=8), ranks=st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_no_schedule_of_pairs_beats_the_bound(costs, ranks):
    problem = make_problem([(1, c) for c in costs], num_ranks=ranks, samples_per_bin=2)
    assert lower_bound(problem) <= optimal_slot_time(problem) * (1 + 1e-9)


@given(
    samples=tiny_samples.filter(lambda samples: len(samples) > 2),
    ranks=st.integers(1, 2),
    most=st.integers(1, 3),
)
@settings(max_examples=150, deadline=None)
def test_no_schedule_of_at_most_so_many_samples_beats_the_bound(samples, ranks, most):
    rules = {"num_ranks": ranks, "max_tokens": MAX_TOKENS, "max_samples": most}
    optimum = optimal_slot_time(make_problem(samples, **rules))
    assume(optimum is not None)
    assert lower_bound(make_problem(samples, **rules)) <= optimum * (1 + 1e-9)


def test_giants_that_do_not_fit_alone_are_bounded_by_their_cheapest_pairs():
    costs = [30.0, 29.0, 28.0, 27.0, 26.0] + [0.0] * 3
    problem = make_problem([(1, c) for c in costs], num_ranks=2, samples_per_bin=2)
    assert lower_bound(problem) == (26.0 + 27.0) + 27.0
    assert optimal_slot_time(problem) == (26.0 + 27.0) + 29.0


def test_equal_samples_are_bounded_by_their_share():
    problem = make_problem([(1, 3)] * 8, num_ranks=4, max_tokens=2)
    assert lower_bound(problem) == 6.0


def test_one_giant_is_bounded_by_itself():
    problem = make_problem([(12, 100), (1, 1), (1, 1)], num_ranks=2, max_tokens=12)
    assert lower_bound(problem) == 100.0


def test_a_giant_whose_slot_cannot_be_filled_adds_to_the_share_of_the_others():
    problem = make_problem([(12, 100)] + [(6, 10)] * 40, num_ranks=2, max_tokens=12)
    assert lower_bound(problem) == pytest.approx(100 + (400 - 20) / 2)


def test_giants_that_need_a_second_slot_are_counted_in_it():
    problem = make_problem([(7, 50)] * 3 + [(1, 1)] * 4, num_ranks=2, max_tokens=12)
    assert lower_bound(problem) == 100.0


def test_samples_alone_in_their_bins_are_bounded_by_every_rth_of_them():
    problem = make_problem(
        [(1, 9), (1, 8), (1, 2), (1, 1)], num_ranks=2, max_tokens=12, slot_multiple=2
    )
    assert lower_bound(problem) == 9.0 + 2.0 == optimal_slot_time(problem)


def test_more_equal_giants_than_ranks_take_whole_rounds():
    problem = make_problem([(1, 10)] * 5 + [(1, 0)] * 5, num_ranks=2, max_tokens=12)
    assert lower_bound(problem) == 30.0
