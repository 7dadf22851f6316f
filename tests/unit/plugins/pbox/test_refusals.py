"""What an agent answers to what a request met."""

import errno

import pytest

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.agent.refusals import answer_to
from miles_periodic.plugins.pbox.outcomes import InfrastructureFailure, SandboxGone


@pytest.mark.parametrize("is_of_a_file", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PeriodicError("It is wrong."), 400),
        (ValueError("no number"), 400),
        (KeyError("lease"), 400),
        (SandboxGone("It is gone."), 410),
        (InfrastructureFailure("It is full."), 503),
    ],
)
def test_what_is_refused_has_the_status_of_its_kind(error, status, is_of_a_file):
    assert answer_to(error, is_of_a_file)[0] == status


def test_an_error_goes_over_the_wire_with_the_parts_that_it_has():
    error = PeriodicError("It is wrong.", found="this", remedy="Change it.")
    parts = {"problem": "It is wrong.", "found": "this", "remedy": "Change it."}
    assert answer_to(error, is_of_a_file=False) == (400, parts)


def test_what_is_wrong_with_a_file_is_an_error_of_that_file():
    error = FileNotFoundError(errno.ENOENT, "No such file", "name")
    status, parts = answer_to(error, is_of_a_file=True)
    assert (status, parts["errno"]) == (422, errno.ENOENT)


@pytest.mark.parametrize(
    ("number", "is_of_a_file"),
    [(errno.EMFILE, True), (errno.ENOMEM, True), (errno.ENOENT, False)],
)
def test_what_is_wrong_with_the_node_is_no_error_of_a_file(number, is_of_a_file):
    status, parts = answer_to(OSError(number, "It failed"), is_of_a_file)
    assert status == 503 and "errno" not in parts
    assert parts["problem"].startswith("The node failed") and parts["remedy"]
