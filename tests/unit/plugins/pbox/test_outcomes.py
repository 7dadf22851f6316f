"""How a command ends, on the wire and back."""

import pickle

import pytest

from miles_periodic.plugins.pbox.outcomes import (
    Exited,
    InfrastructureFailure,
    Killed,
    OutOfMemory,
    OutputTruncated,
    Result,
    SandboxGone,
    TimedOut,
    outcome_from_json,
    outcome_to_json,
)

ALL = [
    Exited(3),
    Killed(9, by="num_processes"),
    TimedOut(1.5),
    OutOfMemory(1 << 27),
    OutputTruncated(100),
]
UNKNOWN = [
    {},
    {"outcome": "vanished"},
    {"outcome": "exited"},
    {"outcome": "exited", "code": 1, "more": 2},
]


@pytest.mark.parametrize("outcome", ALL, ids=repr)
def test_an_outcome_comes_back_as_it_was(outcome):
    assert outcome_from_json(outcome_to_json(outcome)) == outcome


@pytest.mark.parametrize("values", UNKNOWN, ids=str)
def test_an_outcome_that_is_not_known_is_an_infrastructure_failure(values):
    with pytest.raises(InfrastructureFailure, match="same miles-periodic"):
        outcome_from_json(values)


@pytest.mark.parametrize("outcome", [Exited(1), Killed(9), TimedOut(1.0)], ids=repr)
def test_only_status_0_is_ok(outcome):
    assert Result(Exited(0), b"", b"", 0.1, True).ok
    assert not Result(outcome, b"", b"", 0.1, True).ok


def test_a_failure_crosses_processes_with_its_parts():
    failure = pickle.loads(pickle.dumps(SandboxGone("gone", remedy="Start another one.")))
    assert (type(failure), failure.parts["remedy"]) == (SandboxGone, "Start another one.")
