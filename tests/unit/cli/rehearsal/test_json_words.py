"""The plan's and the machine's JSON read as short phrases."""

from __future__ import annotations

import pytest

from miles_periodic.cli.rehearsal.json_words import dicts_in, machine_facts, place_of, text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        ({"present": False, "version": "1"}, "not present"),
        ({"present": True, "version": "2.14.1"}, "version 2.14.1"),
        ({"present": True}, "present"),
        (["a", None, 3], "a, 3"),
    ],
)
def test_json_values_become_phrases(value, text):
    assert text_of(value) == text


def test_a_place_is_path_and_line():
    assert place_of({"path": "a.py", "line": 7}) == "a.py:7"
    assert place_of({"path": "a.py"}) == "a.py"


def test_a_list_that_is_none_has_no_objects():
    assert dicts_in({"not": "a list"}) == []


def test_facts_of_the_machine_that_are_not_known_keep_their_name():
    assert machine_facts({"cores": 2, "disk": "ssd"}) == ["2 cores", "disk ssd"]
