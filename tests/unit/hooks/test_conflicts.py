"""What stands on a command line beside a feature, and the error that names it."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.conflicts import Conflict, refuse_conflicts

CONFLICTS = (
    Conflict("the_format", "only one is read", "torch_dist"),
    Conflict("must_shard", "shards are stepped", True),
    Conflict("other_offload", "it moves the same state"),
    Conflict("temperature", "nothing is divided by it", is_refused=lambda value: value <= 0),
)


def refuse(**arguments):
    refuse_conflicts("some-feature", CONFLICTS, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"the_format": "torch_dist", "must_shard": True},
        {"other_offload": None},
        {"other_offload": 0, "temperature": 0.5},
        {"unknown": "anything"},
    ],
)
def test_arguments_that_go_together_are_taken(arguments):
    assert refuse(**arguments) is None


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("the_format", "zarr", "Give --the-format torch_dist"),
        ("must_shard", False, "Give --must-shard,"),
        ("other_offload", True, "Leave --other-offload out or change it"),
        ("temperature", 0, "Leave --temperature out or change it"),
    ],
)
def test_the_first_that_does_not_is_named_with_what_to_change(argument, value, remedy):
    with pytest.raises(PeriodicError, match=remedy) as caught:
        refuse(**{argument: value})
    told = str(caught.value)
    assert repr(value) in told and "or take the feature out with -some-feature" in told
    assert caught.value.parts["target"] == f"--{argument.replace('_', '-')}"
