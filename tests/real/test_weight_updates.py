"""In-place weight updates on real servers: what running rollouts keep and new ones never see."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from weight_updates import Rollouts, in_flight, prompt, serving

from miles_periodic.compat.cpu.sglang_server import ServerRefusal

pytestmark = pytest.mark.real

NUM_UPDATES = 5
NUM_ROLLOUTS = 4
#: Long enough that a request is still running when the next update comes.
LONG_TURN_TOKENS = 160


@pytest.fixture(scope="module", params=["0.5.16", "0.5.23"])
def weights(request, sglang_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    with serving(sglang_path(request.param), folder) as made:
        yield made


@pytest.fixture
def rollouts(weights):
    """`rollouts(salt=…)`: rollouts on the server under a feature with these settings."""
    return lambda **settings: Rollouts(weights, **settings)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(NUM_ROLLOUTS) as threads:
        yield threads


def update_under(running, weights, pool):
    """Update the weights while each of `running` has a request at the server; its answers."""
    turns = in_flight(running, pool, LONG_TURN_TOKENS)
    unfinished = []
    weights.update_in_place(lambda: unfinished.extend(turn for turn in turns if not turn.done()))
    assert unfinished, "no request was running during the update; make LONG_TURN_TOKENS longer"
    return [turn.result(120) for turn in turns]


def test_over_n_updates_running_rollouts_prefill_nothing_again_and_new_ones_see_nothing_stale(
    weights, rollouts, pool
):
    ours = rollouts()
    running = [ours.start(prompt(1)) for _ in range(NUM_ROLLOUTS)]
    for _ in range(NUM_UPDATES):
        update_under(running, weights, pool)
        ours.start(prompt(1)).turn()
    for rollout in running:
        rollout.turn()
    counts = ours.drain()
    assert counts["re_prefilled_tokens"] == 0
    assert counts["stale_tokens"] == 0
    assert counts["retractions"] == 0
    assert counts["requests"] == NUM_UPDATES * (NUM_ROLLOUTS + 1) + NUM_ROLLOUTS
    assert counts["reused_tokens"] > NUM_UPDATES * NUM_ROLLOUTS * len(prompt(1))


def test_without_salts_new_rollouts_are_served_tokens_of_older_weights(weights, rollouts, pool):
    ours = rollouts(salt=False)
    running = [ours.start(prompt(2)) for _ in range(NUM_ROLLOUTS)]
    for _ in range(NUM_UPDATES):
        update_under(running, weights, pool)
        ours.start(prompt(2)).turn()
    counts = ours.drain()
    # The first of them finds the prefix only where a running one has reached the cache by then.
    assert counts["stale_tokens"] >= (NUM_UPDATES - 1) * (len(prompt(2)) - 64)
    assert counts["re_prefilled_tokens"] == 0


def test_with_a_flush_every_update_makes_running_rollouts_prefill_all_they_held_again(
    weights, rollouts
):
    ours = rollouts()
    running = [ours.start(prompt(3)) for _ in range(2)]
    for _ in range(NUM_UPDATES):
        for rollout in running:
            rollout.turn()
        weights.update_with_flush()
    for rollout in running:
        rollout.turn()
    counts = ours.drain()
    # Two rollouts share a prompt, and with it one prefill of it after each flush.
    assert counts["re_prefilled_tokens"] >= NUM_UPDATES * len(prompt(3))
    assert counts["stale_tokens"] == 0


def test_a_salted_rollout_after_an_update_equals_one_on_a_clean_server(weights, rollouts):
    ours = rollouts()
    ours.start(prompt(4)).turn()
    weights.update_in_place()
    salted = ours.start(prompt(4)).turn()
    weights.server.get("/flush_cache")
    clean = weights.server.generate(prompt(4), 8)
    assert salted["output_ids"] == clean["output_ids"]
    assert salted["meta_info"]["cached_tokens"] == 0


def test_nothing_is_generated_between_a_pause_and_its_continuation(weights, rollouts, pool):
    ours = rollouts()
    turn = ours.start(prompt(5)).in_flight(pool, LONG_TURN_TOKENS)
    weights.pause()
    time.sleep(1.5)  # Longer than the rest of the turn takes.
    assert not turn.done()
    weights.server.post("/continue_generation")
    assert turn.result(120)["meta_info"]["completion_tokens"] == LONG_TURN_TOKENS


def test_a_pause_is_idempotent_with_an_empty_batch_and_twice_in_a_row(weights):
    for _ in range(2):
        weights.pause()
    for _ in range(2):
        weights.server.post("/continue_generation")
    assert weights.server.generate(prompt(6))["meta_info"]["completion_tokens"] == 4


def test_a_flush_under_running_requests_is_refused_and_costs_nothing(weights, rollouts, pool):
    ours = rollouts()
    rollout = ours.start(prompt(7))
    turn = rollout.in_flight(pool, LONG_TURN_TOKENS)
    weights.pause()
    with pytest.raises(ServerRefusal):
        weights.server.get("/flush_cache")
    weights.server.post("/continue_generation")
    turn.result(120)
    rollout.turn()
    assert ours.drain()["re_prefilled_tokens"] == 0
