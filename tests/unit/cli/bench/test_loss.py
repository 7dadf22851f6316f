from __future__ import annotations

import pytest
import torch

from miles_periodic.cli.bench import loss
from miles_periodic.cli.bench.live_bytes import LiveBytes
from miles_periodic.hooks.errors import PeriodicError

SHAPE = loss.Shape(num_tokens=64, vocabulary=600, width=8, chunk_tokens=16, chunk_vocabulary=100)
WAYS = ("logits by torch", "ours, torch")


@pytest.fixture(scope="module")
def result() -> dict:
    return loss.measure(SHAPE, ways=WAYS, repeats=1)


def test_each_way_is_measured_on_the_same_operands(result):
    assert [row["way"] for row in result["rows"]] == list(WAYS)
    by_torch, ours = (row["largest"] for row in result["rows"])
    assert by_torch == pytest.approx(ours, abs=1e-5)


def test_what_is_without_logits_holds_less_than_they_take(result):
    by_torch, ours = result["rows"]
    assert ours["of_logits"] < 1 <= by_torch["of_logits"]
    assert result["logits_bytes"] == 64 * 600 * 4


def test_errors_are_within_rounding(result):
    assert all(row["largest_error"] <= row["rounding"] for row in result["rows"])
    assert result["verdict"] == loss.MET


def test_the_table_has_a_line_per_way_and_says_what_came_of_the_goals(result):
    table = loss.table(result)
    assert table.row_count == 2 and "goals: met" in table.caption


@pytest.mark.parametrize(
    ("missed", "says"),
    [
        ({"of_logits": 1.7}, "holds 1.70 times the logits"),
        ({"largest": 123.0}, "gives a log-probability of 123"),
        ({"largest_error": 0.5}, "is off by 0.5"),
        ({"outcome": "out of memory"}, "out of memory"),
    ],
)
def test_a_missed_goal_of_ours_is_told(result, missed, says):
    stock, ours = result["rows"]
    assert says in loss.verdict([stock, {**ours, **missed}], "cpu")
    assert loss.verdict([{**stock, **missed}, ours], "cpu") == loss.MET


def test_a_way_that_runs_out_of_memory_is_a_row_and_no_end():
    def compute(*operands):
        raise torch.OutOfMemoryError

    row = loss._row("ours, torch", compute, SHAPE, "cpu", 1)
    assert (row["outcome"], row["peak_bytes"]) == ("out of memory", None)


def test_an_unknown_way_is_an_error_that_names_the_nearest():
    with pytest.raises(PeriodicError, match="ours, torch"):
        loss.measure(SHAPE, ways=("our, torch",))


def test_live_bytes_are_those_that_are_held_at_one_time():
    known = torch.zeros(100)
    with LiveBytes([known]) as live:
        first = known + 1
        second = first * 2
        del first
        third = second.view(10, 10).T + 0
        known.add_(third.sum())
    assert (live.peak, live.now) == (2 * 400 + 4, 2 * 400)
