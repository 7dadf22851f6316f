"""Runs that cannot keep KV over a weight update are refused before anything starts."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.plugins.kv_preservation.runs import (
    check_updates_in_place,
    check_weight_versions,
    staleness_arguments,
)


def test_a_colocated_run_that_does_not_offload_its_servers_is_allowed():
    check_updates_in_place({"colocate": True, "offload_rollout": False})


def test_offloaded_servers_are_refused_with_the_flag_that_keeps_them():
    with pytest.raises(PeriodicError, match=r"Give --no-offload-rollout, or set"):
        check_updates_in_place({"offload_rollout": True})


def test_offloading_that_colocate_switches_on_is_named_as_such():
    with pytest.raises(PeriodicError, match=r"--offload-rollout \(--colocate sets it\)"):
        check_updates_in_place({"colocate": True, "offload_rollout": True})


def test_scoring_that_flushes_first_is_refused_by_name():
    with pytest.raises(PeriodicError, match="--recompute-logprobs-via-prefill"):
        check_updates_in_place({"recompute_logprobs_via_prefill": True})


def test_miles_own_data_buffer_is_bounded_alike():
    assert staleness_arguments({"max_weight_staleness": None}, 2) == {"max_weight_staleness": 2}


def test_a_miles_without_a_data_buffer_needs_no_argument():
    assert staleness_arguments({}, 2) == {}


def test_two_different_bounds_are_refused():
    with pytest.raises(PeriodicError, match="max_off_policy_steps=4"):
        staleness_arguments({"max_weight_staleness": 4}, 2)


def test_rollouts_of_session_servers_cannot_be_bounded():
    with pytest.raises(PeriodicError, match="--use-session-server"):
        staleness_arguments({"use_session_server": True}, 2)


def test_servers_with_several_tokenizer_workers_are_refused_by_name():
    with pytest.raises(PeriodicError, match="Give --sglang-tokenizer-worker-num 1"):
        check_weight_versions({"sglang_tokenizer_worker_num": 2})


def test_one_tokenizer_worker_reports_one_weight_version():
    check_weight_versions({"sglang_tokenizer_worker_num": 1})
    check_weight_versions({})
