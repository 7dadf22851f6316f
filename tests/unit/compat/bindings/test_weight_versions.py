"""The newest weight version that a server reported."""

import pytest

from miles_periodic.compat.bindings import weight_versions


@pytest.fixture(autouse=True)
def fresh():
    weight_versions.forget()
    yield
    weight_versions.forget()


def after(*versions):
    for version in versions:
        weight_versions.saw(version)
    return weight_versions.newest()


def test_at_first_none_is_known():
    assert after() is None
    assert after(None) is None


def test_counts_only_go_up():
    assert after("9", "10", "9") == "10"


def test_a_count_replaces_a_name_and_not_the_other_way():
    assert after("default", 1, "default") == "1"


def test_of_names_the_last_one_stands():
    assert after("a", "b") == "b"
