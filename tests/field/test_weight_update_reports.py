"""Weight updates that broke other people's runs, each named after the right behaviour.

The server is a real SGLang 0.5.16, a release that dies where a flush meets running requests.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from weight_updates import Rollouts, prompt, serving

from miles_periodic.compat.cpu.sglang_server import ServerRefusal
from miles_periodic.compat.probes import kv_preservation
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import PeriodicError, Unsupported
from miles_periodic.plugins.kv_preservation.feature import KVPreservation, salt_of

#: Long enough that a request is still running when the server is told something.
LONG_TURN_TOKENS = 120


@pytest.fixture(scope="module")
def weights(sglang_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    with serving(sglang_path("0.5.16"), folder) as made:
        yield made


@pytest.fixture
def rollouts(weights):
    return lambda **settings: Rollouts(weights, **settings)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.mark.real
def test_the_age_of_reused_kv_is_bounded_and_reported(weights, rollouts):
    """NeMo-RL#4018, prime-rl#1650: the prefix cache served KV that was up to 17 updates old."""
    old, bounded = rollouts(salt=False), rollouts(max_off_policy_steps=1)
    old.start(prompt(1)).turn()
    running = bounded.start(prompt(1))
    running.turn()
    for _ in range(2):
        weights.update_in_place()
    old.start(prompt(1)).turn()
    bounded.start(prompt(1)).turn()
    assert old.drain()["stale_tokens"] > 0
    assert bounded.drain()["stale_tokens"] == 0
    assert "2 weight versions ago, 1 are allowed" in running.verdict().reason


@pytest.mark.real
def test_the_pause_mode_decides_that_no_flush_is_sent(weights, rollouts, pool):
    """miles#1497, sglang#33784: a flush that cannot succeed is sent 60 times, then the job dies."""
    rollout = rollouts().start(prompt(2))
    turn = rollout.in_flight(pool, LONG_TURN_TOKENS)
    weights.server.post("/pause_generation", mode="retract")
    with pytest.raises(ServerRefusal, match="400"):
        weights.server.get("/flush_cache")
    weights.server.post("/continue_generation")
    turn.result(120)
    turn = rollout.in_flight(pool, LONG_TURN_TOKENS)
    weights.update_in_place()
    assert turn.result(120)["meta_info"]["weight_version"] == str(weights.version)


@pytest.mark.real
def test_a_flush_is_taken_back_before_the_weights_change(weights, rollouts, pool):
    """AReaL#140: "Cache flush failed after updating weights" kills the scheduler."""
    ours = rollouts()
    rollout = ours.start(prompt(3))
    turn = rollout.in_flight(pool, LONG_TURN_TOKENS)
    weights.update_in_place(flush_cache=True)
    turn.result(120)
    rollout.turn()
    assert weights.server.is_running
    assert ours.drain()["re_prefilled_tokens"] == 0


@pytest.mark.real
def test_a_pause_counts_only_once_the_loops_are_quiet(weights, rollouts, pool):
    """sglang#23668: loops ignored the pause, and weights changed under a forward pass."""
    turn = rollouts().start(prompt(4)).in_flight(pool, LONG_TURN_TOKENS)
    weights.pause()
    time.sleep(1)  # Longer than the rest of the turn takes.
    assert not turn.done()
    weights.server.post("/continue_generation")
    assert turn.result(120)["meta_info"]["completion_tokens"] == LONG_TURN_TOKENS


@pytest.mark.real
def test_a_pause_is_idempotent_in_every_state(weights):
    """sglang#20272: a pause with an empty batch crashes."""
    for _ in range(3):
        weights.pause()
    weights.update_in_place()
    weights.server.post("/continue_generation")
    assert weights.server.generate(prompt(5))["meta_info"]["completion_tokens"] == 4


def test_servers_on_which_an_update_reaches_one_tokenizer_worker_only_are_refused():
    """sglang#25319, sglang#24462: a worker that was not told waited for ever, or knew old weights.

    On 0.5.16 the updates end; afterwards one worker reports the new version, the other the old.
    """
    with pytest.raises(PeriodicError, match="--sglang-tokenizer-worker-num 1"):
        KVPreservation().complete_arguments(arguments={"sglang_tokenizer_worker_num": 2})


@pytest.mark.real
def test_what_a_recovered_server_answers_does_not_enter_training(weights, rollouts):
    """miles#1807: a recovered server has base weights, tagged `default`; its samples were used."""
    ours = rollouts(max_off_policy_steps=5)
    running = ours.start(prompt(20))
    running.turn()
    assert running.verdict() is None
    server = weights.server
    server.post("/update_weight_version", new_version="default", abort_all_requests=False)
    try:
        running.turn()
        assert "was answered by default" in running.verdict().reason
        assert "'default'" in ours.start(prompt(21)).verdict().reason
    finally:
        weights.update_in_place()


def test_salts_are_typed_so_that_no_key_of_a_client_is_one():
    """sglang#24638: an extra_key that a client chose collided with the id of a LoRA adapter."""
    versions, keys = (
        ("1", "12"),
        (None, "", "adapter", "1", salt_of("1"), f"{salt_of('1')};client="),
    )
    salts = [salt_of(version, key) for version in versions for key in keys]
    assert len(set(salts)) == len(salts)
    assert not set(salts) & {None, "", "adapter", "1"}


def test_a_salt_that_never_reaches_the_cache_is_found_before_the_run(unpacked):
    """ktransformers#2184: the salt was parsed and carried, and given to no request."""
    decision = kv_preservation.sglang(Tree.at("sglang", unpacked("sglang", "0.5.9", "3.11")))
    assert isinstance(decision, Unsupported)
    assert "never becomes part of the radix key" in decision.reason


def test_a_server_that_ignores_salts_is_found_by_two_small_requests():
    """ktransformers#2184, where a patched server only looks as if it took the salt."""
    (proof,) = KVPreservation().server_proofs(request={})
    with pytest.raises(PeriodicError, match="ignores KV salts"):
        proof.check([{"meta_info": {"cached_tokens": 0}}, {"meta_info": {"cached_tokens": 31}}])
