"""Weight versions are counts, in the order of numbers; a name comes before all of them."""

import pytest

from miles_periodic.hooks.weight_versions import is_older, newer


@pytest.mark.parametrize(
    ("version", "than", "answer"),
    [("2", "10", True), ("10", "2", False), ("default", "1", True), ("1", "default", False)],
)
def test_a_name_is_older_than_every_number(version, than, answer):
    assert is_older(version, than) is answer


def test_the_newer_of_two_versions_may_be_unknown():
    assert (newer(None, "2"), newer("2", None), newer("2", "10")) == ("2", "2", "10")
