"""What a change means here, in words, and that every row is listed under a feature."""

import pytest

from miles_periodic.cli.upstream.status import Standing, rows_by_feature
from miles_periodic.upstream.rows import ledger, row_from

PART = {
    "title": "A change",
    "state": "merged",
    "applied-upstream": "0.5.12",
    "last-update": "2026-11-30",
    "description": "it is there",
    "probe": [{"defines": "sglang.srt.x:f"}],
    "replaces": ["server/one"],
    "bindings": ["rollout/two"],
}
ROW = row_from("sglang#1", PART)
UNSENT = row_from(
    "sglang/gap",
    {k: v for k, v in PART.items() if k not in ("probe", "applied-upstream")}
    | {"state": "unsent", "forwarded": "no"},
)


@pytest.mark.parametrize(
    ("row", "present", "bound", "meaning"),
    [
        (ROW, None, (), "sglang is not installed"),
        (ROW, True, (), "in this tree, which needs no server/one"),
        (
            ROW,
            True,
            ("rollout/two",),
            "in this tree, which needs no server/one; bound here: rollout/two",
        ),
        (ROW, False, ("server/one",), "not in this tree, but in 0.5.12; bound here: server/one"),
        (UNSENT, None, ("server/one",), "proposed by nobody; bound here: server/one"),
    ],
)
def test_what_a_change_means_here_is_said_in_words(row, present, bound, meaning):
    assert Standing("some-feature", row, present, bound).meaning == meaning


def test_every_row_stands_under_some_feature():
    listed = {key for keys in rows_by_feature().values() for key in keys}
    assert listed == set(ledger())
