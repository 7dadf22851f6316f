"""The score is the stated sum; the best server is always the same one, and one of those given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from miles_periodic.hooks import ServerState
from miles_periodic.plugins.request_routing.scoring import Weights, best_server
from miles_periodic.plugins.request_routing.settings import RequestRoutingSettings

WEIGHTS = Weights(prefix=1.0, queue=512.0, kv=4096.0, load=64.0)
STATES = st.lists(
    st.builds(
        ServerState,
        st.sampled_from([f"http://10.0.0.{n}" for n in range(6)]),
        queue_depth=st.integers(0, 3),
        kv_use=st.sampled_from([0.0, 0.25, 1.0]),
        load=st.integers(0, 3),
        prefix_tokens=st.sampled_from([0, 64, 4096]),
    ),
    min_size=1,
    unique_by=lambda state: state.url,
)


@given(STATES, st.text(max_size=8), st.randoms())
def test_the_best_server_is_one_of_the_highest_whatever_their_order(states, key, random):
    chosen = best_server(states, WEIGHTS, key)
    scores = {state.url: WEIGHTS.score(state) for state in states}
    assert scores[chosen] == max(scores.values())
    random.shuffle(states)
    assert best_server(states, WEIGHTS, key) == chosen


def test_a_score_is_the_weighted_sum():
    state = ServerState("a", queue_depth=2, kv_use=0.5, load=3, prefix_tokens=1000)
    assert WEIGHTS.score(state) == 1000 - 2 * 512 - 0.5 * 4096 - 3 * 64


def test_a_long_prefix_outweighs_a_short_queue_and_not_a_long_one():
    there = ServerState("there", queue_depth=3, prefix_tokens=2000)
    free = ServerState("free")
    assert best_server([there, free], WEIGHTS, "") == "there"
    crowded = ServerState("there", queue_depth=4, prefix_tokens=2000)
    assert best_server([crowded, free], WEIGHTS, "") == "free"


def test_a_weight_of_zero_leaves_its_part_out():
    weights = Weights(0.0, 0.0, 0.0, 1.0)
    states = [ServerState("a", load=1, prefix_tokens=10_000), ServerState("b", queue_depth=9)]
    assert best_server(states, weights, "") == "b"


@pytest.mark.parametrize("weight", ["prefix", "queue", "kv", "load"])
def test_a_weight_that_is_no_finite_number_is_refused(weight):
    with pytest.raises(ValidationError, match="finite number"):
        RequestRoutingSettings(**{f"{weight}_weight": float("inf")})
