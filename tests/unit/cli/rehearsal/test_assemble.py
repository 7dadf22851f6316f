"""What must hold of the sandboxes of a rehearsal for it to pass."""

import pytest

from miles_periodic.cli.rehearsal.assemble import sandbox_checks
from miles_periodic.cli.rehearsal.sandboxes import Sandboxes

TOOLS = {"calls": 48, "wrong": 0, "failures": [], "sandboxes": 16, "left": 0}


def checks_of(changed=None, **boxes):
    runs = {"off": {"tools": TOOLS}, "on": {"tools": TOOLS | (changed or {})}}
    found = sandbox_checks(runs, Sandboxes(**boxes))
    return [check["passed"] for check in found], " ".join(check["detail"] for check in found)


def test_calls_that_were_all_answered_and_nothing_left_pass():
    passed, said = checks_of()
    assert passed == [True, True] and said.startswith("96 calls in 32 sandboxes")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"wrong": 1}, "1 with another answer than the calculator's"),
        ({"failures": ["The agent did not answer."]}, "; The agent did not answer."),
    ],
)
def test_a_wrong_answer_and_a_failure_fail(changed, said):
    passed, detail = checks_of(changed)
    assert passed == [False, True] and said in detail


def test_a_sandbox_that_outlives_its_run_fails():
    passed, said = checks_of({"left": 2})
    assert passed == [True, False] and "2 sandboxes after the runs" in said


def test_what_the_agent_leaves_fails():
    passed, said = checks_of(left=["1 mounts"])
    assert passed == [True, False] and "1 mounts" in said


def test_no_call_at_all_proves_nothing():
    runs = {"off": {"tools": TOOLS | {"calls": 0}}}
    assert not sandbox_checks(runs, Sandboxes())[0]["passed"]


def test_an_agent_that_should_have_run_and_did_not_fails():
    passed, said = checks_of(reason="the agent did not start", problem="memory is not enforced")
    assert passed == [False] and said == "memory is not enforced"


def test_where_no_sandbox_can_be_had_nothing_is_checked():
    assert checks_of(reason="runsc is not installed") == ([], "")
