"""Rollouts of a real Miles whose tools run in real sandboxes, and what failures do to them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PROCESS = Path(__file__).parents[1] / "lines" / "tool_rollouts_process.py"
TIMEOUT_SECONDS = 900
CASES = [
    "tool_call",
    "out_of_memory",
    "odd_words",
    "failure_once",
    "failure_each_time",
    "abort",
    "agent_that_raises",
    "agent_that_passes_over_it",
    "agent_under_miles_alone",
]


@pytest.fixture(scope="module")
def groups(sandbox_agent):
    done = subprocess.run(
        [sys.executable, str(PROCESS), json.dumps(CASES)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={
            **os.environ,
            "PBOX_ADDRESS": sandbox_agent.address,
            "PBOX_TOKEN_FILE": str(sandbox_agent.token_file),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_tool_call_runs_in_a_sandbox_and_its_answer_reaches_the_model(groups):
    group = groups["tool_call"]
    assert (group["said"], group["status"], group["kept"]) == (["42"], "completed", True)


def test_a_sandbox_that_the_model_ends_is_the_models_doing(groups):
    group = groups["out_of_memory"]
    assert "MiB of memory" in group["said"][0] and "started anew" in group["said"][0]
    assert (group["status"], group["rewarded"], group["kept"]) == ("completed", [0], True)


def test_words_that_no_command_can_have_are_answered_to_the_model(groups):
    group = groups["odd_words"]
    nul, half, wrong = group["said"]
    assert ("without NUL" in nul, half, "one parameter" in wrong) == (True, "?", True)
    assert (group["status"], group["rewarded"]) == ("completed", [0])


def test_a_failure_of_the_infrastructure_plays_the_sample_again(groups):
    group = groups["failure_once"]
    assert (group["status"], group["said"], group["attempts"]) == ("completed", ["1"], 2)
    assert group["rewarded"] == [0]


@pytest.mark.parametrize(
    "case", ["failure_each_time", "agent_that_raises", "agent_that_passes_over_it"]
)
def test_a_failure_that_stays_is_no_reward_and_leaves_the_group(groups, case):
    group = groups[case]
    assert (group["status"], group["reward"], group["removed"]) == ("aborted", None, True)
    assert (group["rewarded"], group["kept"]) == ([], False)


def test_miles_alone_rewards_a_sample_whose_agent_failed(groups):
    """What the function above is there for; where this fails, Miles has changed: look again."""
    group = groups["agent_under_miles_alone"]
    assert (group["status"], group["reward"], group["kept"]) == ("completed", 0.0, True)


def test_miles_abort_ends_a_tool_that_would_run_for_minutes(groups):
    group = groups["abort"]
    assert (group["said"], group["status"], group["rewarded"]) == ([], "aborted", [])


def test_no_rollout_leaves_a_sandbox(groups):
    assert {name: group["sandboxes"] for name, group in groups.items()} == dict.fromkeys(CASES, 0)
