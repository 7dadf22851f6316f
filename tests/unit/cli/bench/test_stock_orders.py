from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.cli.bench.stock_orders import (
    differencing,
    first_fit_count,
    fixed_size,
    rank_orders,
    under_cap,
)

any_values = st.lists(st.integers(1, 1000), min_size=6, max_size=40)


def sums_of(values, parts) -> list[int]:
    return [sum(values[i] for i in part) for part in parts]


@given(values=any_values, num_parts=st.integers(1, 6))
@settings(deadline=None)
def test_differencing_covers_every_value_once_and_sorts_by_sum(values, num_parts):
    parts = differencing(values, num_parts)
    assert sorted(i for part in parts for i in part) == list(range(len(values)))
    sums = sums_of(values, parts)
    assert sums == sorted(sums, reverse=True)


def test_differencing_follows_the_worked_example_of_the_method():
    assert sums_of([8, 7, 6, 5, 4], differencing([8, 7, 6, 5, 4], 2)) == [16, 14]


@given(values=st.lists(st.integers(1, 1000), min_size=12, max_size=12))
@settings(deadline=None)
def test_differencing_keeps_counts_equal_where_asked(values):
    parts = differencing(values, 4, equal_counts=True)
    assert [len(part) for part in parts] == [3] * 4


def test_ranks_by_stride_take_samples_in_turn():
    assert rank_orders([1] * 5, 2, balance=False) == [[0, 2, 4], [1, 3]]


def test_ranks_by_tokens_have_like_sums():
    orders = rank_orders([9, 1, 8, 2], 2, balance=True)
    assert sums_of([9, 1, 8, 2], orders) == [10, 10]


def test_fixed_micro_batches_are_runs_of_the_order():
    assert fixed_size([[4, 2, 0, 6]], 2) == [[[4, 2], [0, 6]]]


def test_first_fit_opens_a_bin_when_none_has_room():
    assert first_fit_count([6, 5, 4, 5, 1], 10) == 3


def test_every_rank_has_as_many_micro_batches_as_the_fullest_needs():
    planned = under_cap([[0, 1], [2, 3]], [9, 9, 1, 1], 10)
    assert [len(rank) for rank in planned] == [2, 2]
