"""The ledger is well formed, and what is malformed in it is said by name."""

import re

import pytest

from miles_periodic.compat.catalog import BINDINGS, SESSION_BINDINGS, every_name
from miles_periodic.hooks.conditions import Defines
from miles_periodic.upstream.rows import ledger, replacements, row_from

ROWS = ledger()
PART = {
    "title": "A change",
    "state": "open",
    "last-update": "2026-11-30",
    "description": "it is there",
    "probe": [{"defines": "sglang.srt.x:f"}],
    "probe-from": "its description",
}


def test_a_row_is_read_with_its_upstream_number_and_address():
    row = row_from("megatron#7", {**PART, "bindings": ["a"], "replaces": ["b"]})
    assert (row.upstream, row.number) == ("megatron", 7)
    assert row.url == "https://github.com/NVIDIA/Megatron-LM/pull/7"
    assert row.probe.conditions == (Defines(("sglang.srt.x:f",)),)
    assert row.every_binding == ("b", "a")


def test_a_change_without_a_number_has_no_address():
    assert (row_from("sglang/a-change", PART).number, row_from("sglang/a-change", PART).url) == (
        None,
        "",
    )


@pytest.mark.parametrize(
    ("key", "changes", "words"),
    [
        ("vllm#1", {}, "neither upstream#number nor upstream/words"),
        ("sglang#1", {"state": "done"}, "state 'done' is none of open, merged, closed, unsent"),
        ("sglang#1", {"origin": "mars"}, "origin 'mars' is none of upstream, vendor"),
        ("sglang#1", {"last-update": "yesterday"}, "last-update 'yesterday' is no date"),
        ("sglang#1", {"state": "merged"}, "applied-upstream does not say where"),
        ("sglang#1", {"probe-from": ""}, "probe-from does not say what its names were read from"),
        ("sglang#1", {"state": "unsent"}, "forwarded = 'no' or 'not-needed: why'"),
        ("sglang#1", {"forwarded": "no"}, "forwarded = 'no' or 'not-needed: why'"),
        ("sglang#1", {"colour": "red"}, "colour"),
        ("sglang#1", {"probe": [{"says": "x"}]}, "has not exactly one of defines"),
    ],
)
def test_a_malformed_row_is_named_with_its_fault(key, changes, words):
    with pytest.raises(ValueError, match=re.escape(key)) as caught:
        row_from(key, {**PART, **changes})
    assert words in str(caught.value)


def test_a_row_that_is_not_unsent_needs_a_probe():
    with pytest.raises(ValueError, match="it has no probe"):
        row_from("sglang#1", {name: v for name, v in PART.items() if name != "probe"})


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_a_row_names_bindings_that_exist_each_once(row):
    assert set(row.every_binding) <= set(BINDINGS)
    assert len(set(row.every_binding)) == len(row.every_binding)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_a_change_replaces_bindings_on_its_own_upstream_only(row):
    assert {BINDINGS[name].upstream for name in row.replaces} <= {row.upstream}


def test_no_change_replaces_a_binding_that_a_session_server_must_have():
    """A run is refused where one of them is missing: they go in one piece, with the feature."""
    needed = {
        name
        for by_upstream in SESSION_BINDINGS.values()
        for needs in by_upstream.values()
        for name in every_name(needs)
    }
    assert {name for change in replacements() for name in change.bindings} & needed == set()


def test_the_rows_that_replace_something_are_what_the_plan_gets():
    expected = {row.key: row.replaces for row in ROWS.values() if row.replaces and row.probe}
    assert {change.key: change.bindings for change in replacements()} == expected
