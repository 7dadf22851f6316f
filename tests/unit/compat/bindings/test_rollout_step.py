"""A rollout step as Miles logs it."""

from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings import rollout_step, weight_versions
from miles_periodic.compat.bindings.rollout_flight import RECORD
from miles_periodic.hooks import Feature, hookimpl
from miles_periodic.hooks.values import Cancel


class Numbers(Feature):
    """Reports what it sees, and refuses what started under version 1."""

    slug = "numbers"

    @hookimpl
    def rollout_verdict(self, rollout, weight_version, finished):
        return Cancel("too old") if finished and rollout.weight_version == "1" else None

    @hookimpl
    def rollout_step_metrics(self, step):
        self.step = step
        return {"numbers/dropped": step.num_dropped}


@pytest.fixture
def feature(process):
    made = Numbers()
    process.use(made)
    return made


def log(samples, metrics=None):
    def log_rollout_data(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
        return rollout_extra_metrics

    args = SimpleNamespace(n_samples_per_prompt=4)
    return rollout_step.log(log_rollout_data, None, (0, args, samples, metrics, 1.0), {})


def started(sample, version):
    return sample(metadata={RECORD: {"start_weight_version": version}})


def test_numbers_of_features_join_those_of_the_rollout_function(feature, sample):
    assert log([sample()], {"rollout/own": 1}) == {"rollout/own": 1, "numbers/dropped": 0}


def test_a_rollout_function_without_numbers_gets_them_too(feature, sample):
    assert log([sample()]) == {"numbers/dropped": 0}


def test_a_step_says_where_its_samples_started_and_what_is_newest(feature, sample):
    weight_versions.saw("3")
    log([started(sample, "2"), sample()])
    assert feature.step.start_weight_versions == ("2", None)
    assert feature.step.weight_version == "3"


def test_a_finished_sample_that_is_refused_is_masked_and_counted(feature, sample):
    samples = [started(sample, "1"), started(sample, "2")]
    assert log(samples)["numbers/dropped"] == 1
    assert [s.remove_sample for s in samples] == [True, False]
    assert feature.step.start_weight_versions == ("2",)


def test_a_finished_sample_that_is_refused_takes_its_group_with_it(feature, sample):
    samples = [started(sample, "1"), started(sample, "2"), started(sample, "2")]
    for each, group in zip(samples, (4, 4, 5), strict=True):
        each.group_index = group
    assert log(samples)["numbers/dropped"] == 2
    assert [s.remove_sample for s in samples] == [True, True, False]


def test_a_sample_that_miles_took_out_itself_is_not_counted(feature, sample):
    gone = started(sample, "1")
    gone.remove_sample = True
    assert log([gone])["numbers/dropped"] == 0


def test_groups_that_miles_own_buffer_dropped_for_their_age_are_counted(feature, sample):
    metrics = {"rollout/fully_async/stale_groups_filtered": 2}
    assert log([sample()], metrics)["numbers/dropped"] == 8
