"""Sentences claim what the data show: gains, losses and no difference alike."""

from __future__ import annotations

import pytest

from miles_periodic.cli.rehearsal.findings import (
    packing_finding,
    prefix_finding,
    processes_finding,
    proof_finding,
    routes_finding,
    sandboxes_finding,
    saved_by_feature,
    time_finding,
    verdict_sentence,
)
from miles_periodic.cli.rehearsal.result import read_result


def found(finding, result):
    return finding(read_result(result))


def test_fewer_bytes_are_a_gain(passed):
    finding = found(routes_finding, passed)
    assert (finding.sentence, finding.outcome) == ("Routes: 3.9× fewer bytes", "better")


def test_more_bytes_are_called_more(passed):
    passed["runs"]["on"]["routes"]["bytes_received"] = 1_500_000
    finding = found(routes_finding, passed)
    assert (finding.sentence, finding.outcome) == ("Routes: 3.1× more bytes", "worse")


def test_equal_bytes_are_no_difference(passed):
    passed["runs"]["on"]["routes"] = passed["runs"]["off"]["routes"]
    finding = found(routes_finding, passed)
    assert (finding.sentence, finding.outcome) == ("Routes: no difference", "same")


def test_runs_of_unequal_work_are_compared_per_trained_row(passed):
    off, on = (passed["runs"][run]["routes"] for run in ("off", "on"))
    off.update(bytes_received=4000, rows_trained=1000)
    on.update(bytes_received=1000, rows_trained=250)
    finding = found(routes_finding, passed)
    assert finding.sentence == "Routes: no difference per trained row"
    assert "1,000 off, 250 on" in finding.caution


def test_a_run_that_died_early_saved_nothing(passed):
    on = passed["runs"]["on"]
    on["phases"] = on["phases"][:3]
    for finding in (routes_finding, prefix_finding, packing_finding, time_finding):
        shown = found(finding, passed)
        assert shown.outcome == "unknown"
        assert "not comparable" in shown.claim


def test_stale_tokens_that_went_are_a_gain(passed):
    finding = found(prefix_finding, passed)
    assert finding.sentence == "Prefixes: no stale tokens reused instead of 1,216"
    assert finding.outcome == "better"


def test_stale_tokens_that_came_are_a_loss(passed):
    runs = passed["runs"]
    runs["off"], runs["on"] = runs["on"], runs["off"]
    finding = found(prefix_finding, passed)
    assert finding.sentence == "Prefixes: 1,216 stale tokens reused instead of 0"
    assert finding.outcome == "worse"


def test_a_gain_and_a_loss_are_mixed(passed):
    passed["runs"]["on"]["prefix"]["per_step"][1]["reprefilled"] = 640
    finding = found(prefix_finding, passed)
    assert "640 tokens re-prefilled instead of 0" in finding.claim
    assert finding.outcome == "mixed"


def test_less_reuse_is_named_as_the_price(passed):
    passed["runs"]["on"]["prefix"]["per_step"][1]["reused"] = 640
    assert "valid reuse falls to 36 %" in found(prefix_finding, passed).caution


def test_slots_closer_to_the_bound_are_a_gain(passed):
    finding = found(packing_finding, passed)
    assert finding.claim == "1.01× the lower bound instead of 1.10×"
    assert finding.outcome == "better"


def test_slots_farther_from_the_bound_are_called_slower(passed):
    runs = passed["runs"]
    runs["off"]["packing"], runs["on"]["packing"] = runs["on"]["packing"], runs["off"]["packing"]
    finding = found(packing_finding, passed)
    assert finding.claim == "slower, 1.10× the lower bound instead of 1.01×"
    assert finding.outcome == "worse"


def test_ratios_that_read_alike_are_no_difference(passed):
    passed["runs"]["on"]["packing"] = passed["runs"]["off"]["packing"]
    assert found(packing_finding, passed).claim == "no difference, 1.10× the lower bound"


@pytest.mark.parametrize(
    ("seconds", "claim", "outcome"),
    [
        (139.8, "no difference", "same"),
        (147.0, "no difference", "same"),
        (171.0, "slower, 20 % more with the features on", "worse"),
        (71.3, "2.0× less with the features on", "better"),
        (290.0, "slower, 2.0× more with the features on", "worse"),
    ],
)
def test_wall_time_is_told_from_noise(passed, seconds, claim, outcome):
    passed["runs"]["on"]["seconds"] = seconds
    finding = found(time_finding, passed)
    assert (finding.claim, finding.outcome) == (claim, outcome)


def test_equal_training_data_are_said_to_be_equal(passed):
    claim = "Training data: equal, byte for byte, in 16 samples"
    assert found(proof_finding, passed).sentence == claim


def test_different_training_data_name_their_fields(passed):
    passed["proof"].update(equal=False, fields={"tokens": True, "log_probs": False})
    assert found(proof_finding, passed).claim == "different in log_probs"


def test_training_data_without_a_proof_are_not_compared(failed):
    assert found(proof_finding, failed).outcome == "unknown"


def test_bindings_are_counted_in_both_runs(passed):
    finding = found(processes_finding, passed)
    assert finding.sentence == "Bindings: 9 in 4 processes; none with features off"
    assert "rollout/refactored-scope" in finding.caution


def test_bindings_that_the_roll_call_missed_are_named(passed):
    run = read_result(passed).runs.on
    assert run.never_consulted == ("rollout/refactored-scope",)


def test_a_feature_without_a_measure_claims_nothing(passed):
    passed["runs"]["on"]["features"] = ["acme-feature"]
    assert saved_by_feature(read_result(passed)) == {"acme-feature": None}


def test_one_failed_check_is_a_failed_rehearsal(passed):
    passed["checks"][1]["passed"] = False
    assert verdict_sentence(read_result(passed)) == "Rehearsal failed, 1 of 4 checks"


def test_a_failed_tool_call_and_a_sandbox_that_stayed_are_told(passed):
    passed["runs"]["on"]["tools"] |= {"failures": ["The agent did not answer."], "left": 1}
    finding = found(sandboxes_finding, passed)
    assert (finding.claim, finding.outcome) == (
        "194 tool calls in 64 sandboxes, 1 failed, 1 left",
        "worse",
    )


def test_what_stopped_the_agent_is_told(passed):
    passed["sandboxes"]["problem"] = "Limits of sandboxes are not enforced: memory."
    finding = found(sandboxes_finding, passed)
    assert finding.outcome == "worse" and finding.claim.endswith("not enforced: memory.")


def test_a_rehearsal_that_ended_before_its_sandboxes_says_so(passed):
    del passed["sandboxes"]
    assert found(sandboxes_finding, passed).claim == "not reached"
