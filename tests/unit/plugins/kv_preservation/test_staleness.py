"""The age of a rollout in weight versions, and when it is cancelled."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import RolloutStep
from miles_periodic.plugins.kv_preservation.staleness import ages_of, steps_behind, verdict


def test_an_age_is_the_number_of_updates_since():
    assert steps_behind("3", "5") == 2
    assert steps_behind("9", "10") == 1


def test_a_rollout_that_started_on_a_newer_server_is_not_behind():
    assert steps_behind("5", "4") == 0


@pytest.mark.parametrize("versions", [("default", "5"), ("5", "v6"), ("", "5"), ("²", "5")])
def test_a_version_that_is_no_count_is_a_named_error(versions):
    with pytest.raises(PeriodicError, match="leave kv-preservation.max_off_policy_steps unset"):
        steps_behind(*versions)


def test_a_rollout_within_the_bound_goes_on():
    assert verdict("3", "3", "5", 2) is None


def test_a_rollout_beyond_the_bound_is_cancelled_with_its_age():
    assert "3 weight versions ago, 2 are allowed" in verdict("3", "3", "6", 2).reason


def test_a_bound_of_zero_allows_no_update():
    assert verdict("3", None, "3", 0) is None
    assert verdict("3", None, "4", 0) is not None


def test_without_a_bound_nothing_is_cancelled_whatever_the_versions_are():
    assert verdict("default", "default", "weird", None) is None


def test_a_rollout_whose_start_nobody_knows_goes_on():
    assert verdict(None, "7", "7", 0) is None


@pytest.mark.parametrize("served", ["default", "2"])
def test_an_answer_of_older_weights_than_the_start_cancels(served):
    assert f"answered by {served}" in verdict("3", served, "3", 5).reason


def test_a_start_on_a_server_that_was_not_updated_yet_cancels():
    assert "'default'" in verdict("default", "default", "3", 5).reason


def test_where_no_server_counts_its_versions_a_bound_is_a_named_error():
    with pytest.raises(PeriodicError, match="no whole number"):
        verdict("default", "default", "default", 5)


def test_an_answer_of_newer_weights_does_not_cancel():
    assert verdict("3", "4", "4", 5) is None


def test_ages_count_from_each_start_to_the_end_of_the_step():
    ages = ages_of(RolloutStep(("3", "5", None, "5"), "6"))
    assert ages.named("kv/") == {
        "kv/age_min": 1, "kv/age_mean": pytest.approx(5 / 3), "kv/age_max": 3
    }  # fmt: skip


def test_a_step_without_counted_versions_has_no_ages():
    assert ages_of(RolloutStep(("default",), "default")).named("kv/") == {}
    assert ages_of(RolloutStep(("1",), None)).named("kv/") == {}
