"""Fully asynchronous rollouts of Miles at git main, with an age that is bounded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from miles_trees import MAIN

from miles_periodic.compat.matrix.called import calls

PROCESS = Path(__file__).parents[1] / "lines" / "async_process.py"
TIMEOUT_SECONDS = 900


@pytest.fixture(scope="module")
def seen(miles_tree):
    done = subprocess.run(
        [sys.executable, str(PROCESS), str(miles_tree)],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_bindings_are_called_and_stand_on_file(seen):
    called = calls()[MAIN]["tests/miles_main/test_fully_async_rollouts.py"]
    assert set(seen["consulted"]) == called


def counted(seen, step, name):
    return seen["metrics"][step][f"miles_periodic/kv/{name}"]


def test_each_rollout_is_salted_by_the_version_that_it_starts_under(seen):
    assert seen["starts"] == [["1"] * 4, ["3"] * 4]
    assert seen["num_salts"] == 2


def test_rollouts_in_flight_beyond_the_bound_are_aborted_and_counted(seen):
    assert seen["aborted"] == 2
    assert [counted(seen, step, "cancelled_rollouts") for step in (0, 1)] == [0, 2]
    assert seen["prompts"] == ["5 6 7"]


def test_finished_groups_beyond_the_bound_are_dropped_by_miles_own_buffer_and_counted(seen):
    assert seen["max_weight_staleness"] == 1
    assert counted(seen, 0, "dropped_samples") == 0
    assert counted(seen, 1, "dropped_samples") >= 4


def test_the_numbers_reach_a_log_function_of_the_user(seen):
    assert [counted(seen, step, "age_max") for step in (0, 1)] == [0, 0]
    assert counted(seen, 1, "requests") > 0
