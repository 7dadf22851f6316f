"""Numbers read as people say them."""

from __future__ import annotations

import pytest

from miles_periodic.cli.rehearsal.quantities import (
    bytes_text,
    change_text,
    cost_text,
    number_text,
    seconds_text,
    time_text,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "not measured"), (0, "0 B"), (999, "999 B"), (73_216, "73.2 kB"), (1e9, "1.00 GB")],
)
def test_bytes_have_three_digits_and_a_unit(num_bytes, text):
    assert bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (99.9, "99.9 s"), (99.96, "1 min 40 s"), (283.4, "4 min 43 s")],
)
def test_long_times_are_in_minutes(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (100, 100, "no difference"),
        (0, 0, "no difference"),
        (100, 32, "3.1× fewer"),
        (100, 88, "12 % fewer"),
        (100, 112, "12 % more"),
        (1000, 999, "under 1 % fewer"),
        (100, 0, "100 % fewer"),
        (0, 100, "more, from none"),
    ],
)
def test_changes_are_said_in_both_directions(before, after, text):
    assert change_text(before, after, "fewer", "more") == text


def test_costs_carry_their_unit():
    assert cost_text(1.52e9, "FLOPs") == "1.52 GFLOPs"
    assert cost_text(3, "") == "3.00"


def test_metrics_that_are_not_numbers_are_called_that():
    assert number_text(float("nan")) == "not a number"


def test_moments_are_shown_in_utc():
    assert time_text("2026-11-30T04:00:00+02:00") == "2026-11-30 02:00 UTC"
    assert time_text("yesterday") == "yesterday"
