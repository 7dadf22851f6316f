"""All rows asked about: what changed, what stopped it, and that nothing known is lost."""

import pytest

from miles_periodic.upstream import rows, states
from miles_periodic.upstream.github import LimitReached, NotFound, Said, Unreachable
from miles_periodic.upstream.refresh import refresh
from miles_periodic.upstream.rows import ledger

KEYS = ("miles#3307", "miles#2783", "sglang#24001")
ROWS = [ledger()[key] for key in KEYS]
OLD = Said("as before", "open", "2026-09-17", "", "etag", "2026-10-01")


def said(row, **changes):
    values = {"title": row.title, "state": row.state, "opened": row.opened, "merged": row.merged}
    return Said(**{**values, "etag": "new", "seen": "2026-11-30", **changes})


class Answers:
    """A GitHub that says what it is told to say, by key."""

    def __init__(self, **answers):
        self.answers = {key.replace("_", "#"): answer for key, answer in answers.items()}

    def ask(self, row, known=None):
        answer = self.answers.get(row.key, said(row))
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_rows_that_stand_as_the_ledger_says_change_nothing():
    found = refresh(ROWS, Answers(), {})
    assert (found.changed, found.asked, found.stopped) == ((), 3, "")
    assert set(found.said) == set(KEYS)


def test_a_row_that_was_merged_is_named():
    merged = said(ROWS[0], state="merged", merged="2026-11-29")
    assert refresh(ROWS, Answers(miles_3307=merged), {}).changed == ("miles#3307",)


def test_a_row_under_another_title_is_named():
    assert refresh(
        ROWS,
        Answers(
            miles_2783=said(ROWS[1], title="new"),
        ),
        {},
    ).changed == ("miles#2783",)


def test_rows_without_a_number_are_not_asked_about():
    unsent = ledger()["miles/plugin-loader"]
    assert refresh([unsent], Answers(), {}).asked == 0


@pytest.mark.parametrize(
    ("stop", "words"),
    [(Unreachable("no route"), "cannot be reached (no route)"), (LimitReached(9.0), "rate limit")],
)
def test_where_nobody_answers_any_more_the_rest_stays_as_it_was(stop, words):
    found = refresh(ROWS, Answers(miles_2783=stop), {"sglang#24001": OLD})
    assert words in found.stopped
    assert found.asked == 1
    assert found.said["sglang#24001"] == OLD and set(found.said) == {"miles#3307", "sglang#24001"}


def test_one_unknown_number_does_not_stop_the_others():
    found = refresh(ROWS, Answers(miles_3307=NotFound("x")), {})
    assert (found.unknown, found.asked) == (("miles#3307",), 3)


def test_what_was_heard_is_kept_and_read_back():
    states.keep({"miles#3307": OLD})
    assert states.heard() == {"miles#3307": OLD}


def test_a_damaged_file_is_as_good_as_none():
    states.keep({})
    states._file().write_text('{"miles#3307": {"title": "cut sh')
    assert states.heard() == {}


def test_a_newer_state_stands_before_the_ledgers_and_an_older_one_does_not():
    row = ROWS[0]
    newer = said(row, state="merged", merged="2026-11-29")
    assert states.as_heard(row, {row.key: newer}).state == "merged"
    assert states.as_heard(row, {row.key: said(row, state="merged", seen="2026-01-01")}) is row
    assert states.as_heard(row, {}) is row


TEXT = """# A comment.

["miles#3307"]
title = "old"
state = "open"
opened = "2026-09"
last-update = "2026-09-23"
description = "state = open"
probe = [{ defines = "miles.x:f" }]

["miles#2783"]
title = "kept"
state = "open"
last-update = "2026-09-23"
"""


def test_the_ledgers_file_gets_states_and_dates_and_keeps_all_else():
    merged = Said('it "is" new', "merged", "2026-09-17", "2026-11-29", "etag", "2026-11-30")
    text = states.rewritten(TEXT, {"miles#3307": merged})
    assert text.startswith("# A comment.") and text.endswith(TEXT.partition('["miles#2783"]')[2])
    part = rows.tomllib.loads(text)["miles#3307"]
    assert part == {
        "title": 'it "is" new',
        "state": "merged",
        "opened": "2026-09-17",
        "merged": "2026-11-29",
        "applied-upstream": "main",
        "last-update": "2026-11-30",
        "description": "state = open",
        "probe": [{"defines": "miles.x:f"}],
    }
    rows.row_from("miles#3307", part)


def test_a_ledger_that_nothing_was_heard_of_stays_as_it_is():
    for path in rows.folder().glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert states.rewritten(text, {}) == text
