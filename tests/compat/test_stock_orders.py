"""The stock orders of `miles bench packing` are those of the wheel's own functions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from miles.utils.data import get_minimum_num_micro_batch_size
from miles.utils.seqlen_balancing import get_seqlen_balanced_partitions

from miles_periodic.cli.bench.stock_orders import differencing, first_fit_count, under_cap

CAP = 60
token_counts = st.lists(st.integers(1, CAP), min_size=12, max_size=60)


@given(lengths=token_counts, num_parts=st.integers(1, 12))
@settings(max_examples=150)
def test_parts_of_like_tokens_are_those_of_miles(lengths, num_parts):
    ours = [sorted(part) for part in differencing(lengths, num_parts)]
    assert ours == get_seqlen_balanced_partitions(lengths, num_parts, equal_size=False)


@given(lengths=token_counts, num_parts=st.integers(1, 6))
@settings(max_examples=150)
def test_parts_of_equal_counts_are_those_of_miles(lengths, num_parts):
    lengths = lengths[: len(lengths) // num_parts * num_parts]
    ours = [sorted(part) for part in differencing(lengths, num_parts, equal_counts=True)]
    assert ours == get_seqlen_balanced_partitions(lengths, num_parts, equal_size=True)


@given(lengths=token_counts)
def test_a_rank_counts_its_micro_batches_as_miles_does(lengths):
    assert first_fit_count(lengths, CAP) == get_minimum_num_micro_batch_size(lengths, CAP)


@given(lengths=token_counts, num_ranks=st.integers(1, 3))
def test_micro_batches_under_a_cap_are_those_of_the_wheels_iterator(lengths, num_ranks):
    orders = [list(range(rank, len(lengths), num_ranks)) for rank in range(num_ranks)]
    local = [[lengths[i] for i in order] for order in orders]
    count = max(get_minimum_num_micro_batch_size(one, CAP) for one in local)
    if min(map(len, local)) < count:
        return
    theirs = [
        [
            [order[i] for i in part]
            for part in get_seqlen_balanced_partitions(one, count, equal_size=False)
        ]
        for order, one in zip(orders, local, strict=True)
    ]
    assert under_cap(orders, lengths, CAP) == theirs
