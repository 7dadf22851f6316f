"""The main job on the real stack, with every feature off and on."""

import contextlib
import os
from pathlib import Path

import pytest
from pbox_image import why_no_sandboxes

from miles_periodic.compat.matrix.called import calls

pytestmark = pytest.mark.real


def run(rehearsal, name):
    return rehearsal.result["runs"][name]


def test_it_passes_with_miless_own_checks_on(rehearsal):
    assert rehearsal.result["status"] == "passed", rehearsal.result["checks"]
    for name in ("off", "on"):
        log = (rehearsal.folder / "work" / name / "run.log").read_text(errors="replace")
        assert "--ci-test" not in log or "R3 mismatch tokens" not in log


def test_with_every_feature_off_no_binding_is_in_any_process(rehearsal):
    assert all(process["applied"] == [] for process in run(rehearsal, "off")["processes"])


def test_with_every_feature_on_every_binding_was_consulted(rehearsal):
    assert run(rehearsal, "on")["never_consulted"] == []
    consulted = {name for p in run(rehearsal, "on")["processes"] for name in p["consulted"]}
    assert consulted == calls()["miles-rl-0.0.2"]["tests/real/test_rehearsal.py"]


def test_the_first_rollouts_training_data_are_equal_to_the_byte(rehearsal):
    proof = rehearsal.result["proof"]
    assert proof["equal"] and proof["samples"] == 16
    assert proof["fields"] == dict.fromkeys(proof["fields"], True)


def test_delta_replay_receives_each_row_once(rehearsal):
    on, off = run(rehearsal, "on")["routes"], run(rehearsal, "off")["routes"]
    assert on["rows_received"] == on["rows_trained"]
    assert off["rows_received"] > 2 * off["rows_trained"]
    assert on["bytes_received"] < off["bytes_received"] / 2


def test_a_tool_call_stands_between_three_turns_or_more(rehearsal):
    assert max(entry["turn"] for entry in run(rehearsal, "on")["routes"]["per_turn"]) >= 3


def test_salts_keep_new_rollouts_off_stale_kv_that_is_reused_without_them(rehearsal):
    stale = {
        name: sum(step["stale"] for step in run(rehearsal, name)["prefix"]["per_step"])
        for name in ("off", "on")
    }
    assert stale["on"] == 0 < stale["off"]


def test_running_rollouts_prefill_nothing_again(rehearsal):
    assert all(step["reprefilled"] == 0 for step in run(rehearsal, "on")["prefix"]["per_step"])


def test_packing_stays_nearer_to_its_lower_bound(rehearsal):
    for on, off in zip(
        run(rehearsal, "on")["packing"]["per_step"],
        run(rehearsal, "off")["packing"]["per_step"],
        strict=True,
    ):
        assert on["ratio"] + 1e-9 >= 1.0 and on["ratio"] <= off["ratio"]


def test_weights_were_updated_in_place_every_step(rehearsal):
    versions = run(rehearsal, "on")["weight_versions"]
    assert len(versions) == 2
    assert {step["step"] for step in run(rehearsal, "on")["training"]["per_step"]} == {0, 1}


def test_trainer_and_server_agree_on_log_probabilities(rehearsal):
    for step in run(rehearsal, "on")["training"]["per_step"]:
        assert step["log_prob_difference"] < 0.05


@pytest.fixture
def boxes(rehearsal):
    """What the rehearsal says of its sandboxes, where this machine can have them."""
    if reason := why_no_sandboxes():
        pytest.skip(reason)
    return rehearsal.result["sandboxes"]


def test_every_tool_call_of_both_runs_was_answered_in_a_sandbox(rehearsal, boxes):
    assert (boxes["reason"], boxes["problem"]) == ("", "")
    for name in ("off", "on"):
        tools, steps = run(rehearsal, name)["tools"], run(rehearsal, name)["training"]["per_step"]
        assert tools["sandboxes"] == 16 * len(steps) and tools["failures"] == []
        turns = run(rehearsal, name)["routes"]["requests"]
        assert tools["calls"] == turns - tools["sandboxes"]  # no call follows a last turn
        assert tools["wrong"] == 0 < tools["seconds_p50"]


def test_no_sandbox_is_left_by_a_run_or_by_the_rehearsal(rehearsal, boxes):
    assert [run(rehearsal, name)["tools"]["left"] for name in ("off", "on")] == [0, 0]
    assert boxes["left"] == []


def test_the_report_and_the_checks_tell_of_the_sandboxes(rehearsal, boxes):
    passed = {check["name"]: check["passed"] for check in rehearsal.result["checks"]}
    assert passed["Every tool call was answered in a sandbox"] and passed["No sandbox is left"]
    assert " sandboxes, none failed, none left" in rehearsal.report


def test_every_role_reported(rehearsal):
    roles = {process["role"] for process in run(rehearsal, "on")["processes"]}
    assert {"driver", "rollout-manager", "trainer"} <= roles


def test_the_report_is_one_file_that_names_what_stood_in(rehearsal):
    assert "http://" not in rehearsal.report.replace("http://www.w3.org/", "")
    for stand_in in rehearsal.result["stand_ins"]:
        assert stand_in["name"] in rehearsal.report


def test_nothing_is_left_running(rehearsal):
    assert marked_processes() == []


def marked_processes() -> list[str]:
    """Processes whose environment names a rehearsal's run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if b"MILES_PERIODIC_RUN_ID=rehearsal-" in path.read_bytes():
                found.append(path.parent.name)
    return [pid for pid in found if int(pid) != os.getpid()]
