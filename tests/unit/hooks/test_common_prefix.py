"""Two sequences of tokens agree up to the first that differs."""

from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.hooks.common_prefix import common_prefix

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(tokens, tokens)
def test_as_many_tokens_are_alike_as_come_before_the_first_that_differs(one, other):
    found = common_prefix(one, other)
    assert one[:found] == other[:found]
    assert found == min(len(one), len(other)) or one[found] != other[found]


@given(tokens, tokens)
def test_a_tuple_agrees_with_a_list_of_the_same_tokens(one, other):
    assert common_prefix(tuple(one), other) == common_prefix(one, other)
