"""The last turn of each rollout, and no more of them than the bound."""

from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.request_routing.turns import Turn, Turns


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 8))
def test_the_most_recent_keys_are_held_each_with_its_last_turn(keys, most):
    turns = Turns(most)
    for time, key in enumerate(keys):
        turns.note(str(key), Turn("url", time, 10))
    assert len(turns) == min(most, len(set(keys)))
    recent = list(dict.fromkeys(reversed(keys)))[:most]
    for key in recent:
        last = len(keys) - 1 - keys[::-1].index(key)
        assert turns.last(str(key)).time == last


def test_an_unknown_key_has_no_turn():
    assert Turns(1).last("key") is None
