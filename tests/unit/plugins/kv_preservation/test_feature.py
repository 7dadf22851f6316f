"""Salts by weight version, and the pause mode."""

import pytest

from miles_periodic.hooks import PeriodicError, RolloutState
from miles_periodic.hooks.values import RolloutStep
from miles_periodic.plugins.kv_preservation.feature import KVPreservation, salt_of
from miles_periodic.plugins.kv_preservation.settings import KVPreservationSettings


@pytest.fixture
def feature():
    return KVPreservation()


@pytest.fixture
def bounded():
    return KVPreservation(KVPreservationSettings(max_off_policy_steps=1))


def key_of(feature, rollout, **request):
    return feature.generate_request_fields(rollout=rollout, tokens=[1], request=request)[
        "extra_key"
    ]


def test_a_rollout_keeps_its_salt_over_all_turns(feature):
    rollout = RolloutState(weight_version="3")
    assert key_of(feature, rollout) == key_of(feature, rollout)


def test_a_new_weight_version_gets_a_new_salt(feature):
    assert key_of(feature, RolloutState("3")) != key_of(feature, RolloutState("4"))


def test_a_clients_own_key_stays_part_of_the_salt(feature):
    rollout = RolloutState("3")
    keys = {key_of(feature, rollout), *(key_of(feature, rollout, extra_key=k) for k in "ab")}
    assert len(keys) == 3


def test_no_clients_key_can_pass_for_another_version():
    assert salt_of("1", "x") != salt_of("1;client=x")


def test_a_batch_of_keys_is_salted_one_by_one(feature):
    keys = key_of(feature, RolloutState("3"), extra_key=["a", "b"])
    assert keys == [salt_of("3", "a"), salt_of("3", "b")]


def test_a_server_without_a_weight_version_is_an_error(feature):
    with pytest.raises(PeriodicError, match="kv-preservation.salt=false"):
        key_of(feature, RolloutState())


def test_the_pause_mode_is_set_in_place(feature):
    assert feature.complete_arguments(arguments={"colocate": False}) == {
        "pause_generation_mode": "in_place"
    }


def test_a_run_that_loses_its_kv_is_refused_by_name(feature):
    with pytest.raises(PeriodicError, match="--offload-rollout"):
        feature.complete_arguments(arguments={"colocate": True, "offload_rollout": True})


def test_a_bound_on_the_age_of_rollouts_is_handed_to_miles_too(bounded):
    arguments = bounded.complete_arguments(arguments={"max_weight_staleness": None})
    assert arguments == {"pause_generation_mode": "in_place", "max_weight_staleness": 1}


def test_a_server_that_ignores_salts_is_found_by_the_proof(feature):
    (proof,) = feature.server_proofs(request={})
    with pytest.raises(PeriodicError, match="ignores KV salts"):
        proof.check([{"meta_info": {"cached_tokens": 0}}, {"meta_info": {"cached_tokens": 31}}])


def test_two_proofs_never_use_the_same_salts(feature):
    salts = [
        r["extra_key"] for _ in "ab" for p in feature.server_proofs(request={}) for r in p.requests
    ]
    assert len(set(salts)) == 4


def test_everything_off_adds_nothing():
    feature = KVPreservation(KVPreservationSettings(salt=False, pause_in_place=False))
    assert feature.complete_arguments(arguments={}) is None
    assert feature.generate_request_fields(rollout=RolloutState(), tokens=[], request={}) is None
    assert feature.wants_weight_version(rollout=RolloutState()) is None


def test_sessions_are_reached_where_salts_are_on(feature):
    assert feature.reaches_into_sessions(arguments={})
    without = KVPreservation(KVPreservationSettings(salt=False))
    assert not without.reaches_into_sessions(arguments={})


def test_a_bound_needs_the_version_also_without_salts():
    feature = KVPreservation(KVPreservationSettings(salt=False, max_off_policy_steps=1))
    assert feature.wants_weight_version(rollout=RolloutState()) is True


def test_hook_rollout_response_counts_and_hook_rollout_step_metrics_reports(feature):
    rollout = RolloutState("1")
    meta = {"cached_tokens": 2, "weight_version": "1"}
    feature.rollout_response(
        rollout=rollout, tokens=[1, 2, 3], request={}, response={"meta_info": meta}
    )
    step = RolloutStep(("1", "2"), "3", num_cancelled=4, num_dropped=5)
    metrics = feature.rollout_step_metrics(step=step)
    assert metrics["miles_periodic/kv/reused_tokens"] == 2
    assert metrics["miles_periodic/kv/age_max"] == 2
    assert metrics["miles_periodic/kv/cancelled_rollouts"] == 4
    assert metrics["miles_periodic/kv/dropped_samples"] == 5
    assert feature.rollout_step_metrics(step=step)["miles_periodic/kv/reused_tokens"] == 0


def test_hook_rollout_verdict_cancels_beyond_the_bound(bounded):
    verdict = bounded.rollout_verdict
    assert verdict(rollout=RolloutState("1"), weight_version="2", finished=False) is None
    assert verdict(rollout=RolloutState("1"), weight_version="3", finished=False) is not None


def test_hook_rollout_verdict_cancels_what_a_restarted_server_answered(bounded):
    rollout = RolloutState("3")
    answer = {"meta_info": {"weight_version": "default"}}
    bounded.rollout_response(rollout=rollout, tokens=[1], request={}, response=answer)
    answer = bounded.rollout_verdict(rollout=rollout, weight_version="3", finished=False)
    assert "default" in answer.reason


def test_without_a_bound_the_verdict_keeps_everything(feature):
    rollout = RolloutState("1")
    assert feature.rollout_verdict(rollout=rollout, weight_version="9", finished=True) is None
