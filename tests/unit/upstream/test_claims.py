"""What a row claims against what releases show, with each way to disagree."""

import pytest

from miles_periodic.upstream.claims import disagreements, first_release
from miles_periodic.upstream.rows import row_from


def row(applied="", state="merged"):
    return row_from(
        "sglang#1",
        {
            "title": "A change",
            "state": state,
            "last-update": "2026-11-30",
            "description": "it is there",
            "probe": [{"defines": "sglang.srt.x:f"}],
            "probe-from": "its description",
            "applied-upstream": applied,
        },
    )


@pytest.mark.parametrize(
    ("applied", "release"), [("0.5.12", "0.5.12"), ("v0.1.0", None), ("dev", None)]
)
def test_a_tag_and_a_branch_are_no_release(applied, release):
    found = first_release(row(applied))
    assert (str(found) if found else None) == release


def test_a_change_that_is_there_from_the_claimed_release_on_agrees():
    seen = [("0.5.11", False), ("0.5.12", True), ("0.5.12.post1", True), ("0.5.13", True)]
    assert list(disagreements(row("0.5.12"), seen)) == []


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([("0.5.11", True), ("0.5.12", True)], "0.5.11 has it, while the ledger says since 0.5.12"),
        ([("0.5.11", False), ("0.5.12", False)], "0.5.12 has it not, while"),
        ([("0.5.12", True), ("0.5.13", False)], "0.5.13 has it not, while"),
    ],
    ids=["earlier", "later", "lost again"],
)
def test_a_release_that_contradicts_is_named(seen, said):
    (line,) = disagreements(row("0.5.12"), seen)
    assert line.startswith(said)


def test_a_change_that_is_on_a_branch_alone_is_in_no_release():
    assert list(disagreements(row("dev"), [("0.19.2", False)])) == []
    (line,) = disagreements(row("dev"), [("0.19.2", True)])
    assert line == "0.19.2 has it, while the ledger says that only dev has it"


def test_an_open_change_that_a_release_has_is_found():
    (line,) = disagreements(row(state="open"), [("0.5.23", True)])
    assert line == "0.5.23 has it, while the ledger says that nothing has it"
