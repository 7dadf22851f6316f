"""The summary fits a terminal, shows the report's facts, and is steered by nobody's title."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from miles_periodic.cli.rehearsal.summary import print_summary


def printed(result, color: bool = False) -> str:
    out = io.StringIO()
    print_summary(result, Console(file=out, width=80, force_terminal=color))
    return out.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("example", ["passed", "failed"])
def test_a_summary_fits_80_columns(example, request):
    text = printed(request.getfixturevalue(example))
    assert max(map(len, text.splitlines())) <= 80


def test_a_summary_ends_with_the_verdict(passed):
    assert printed(passed).splitlines()[-3].startswith("✓ Rehearsal passed, 4 checks")


def test_a_summary_shows_the_facts_of_the_report(passed):
    text = words(printed(passed))
    for fact in (
        "3.9× fewer bytes",
        "no stale tokens reused",
        "1.01× the lower bound",
        "equal, byte for byte",
        "Bindings: 9 in 4 processes; none with features off",
        "CPU stand-ins, on in both runs",
        "194 tool calls in",
    ):
        assert fact in text


def test_a_failed_rehearsal_says_why(failed):
    text = printed(failed)
    assert "✗ Rehearsal failed, 1 of 2 checks" in text
    assert "signal 9" in text


def test_markup_in_a_title_is_text(passed):
    passed["checks"][0]["detail"] = "[bold]loud[/bold] [/nothing]"
    assert "[bold]loud[/bold]" in printed(passed, color=True)


def test_escape_sequences_do_not_reach_the_terminal(passed):
    passed["checks"][0]["name"] = "\x1b[2J\x9b31mname"
    text = printed(passed)
    assert "\x1b" not in text and "\x9b" not in text


def test_a_rehearsal_that_never_started_has_a_summary():
    assert "Rehearsal failed" in printed({"status": "failed"})
