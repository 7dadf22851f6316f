from __future__ import annotations

import pytest

from miles_periodic.cli.bench import packing
from miles_periodic.hooks.errors import PeriodicError


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return packing.measure(sample_counts=(64,), traces=("lognormal",), seeds=(0,), time_budget=0)


def test_every_rule_is_measured(rows):
    assert [row["rule"] for row in rows] == ["under cap", "of 1", "of 2"]


def test_no_order_is_below_the_bound(rows):
    assert all(min(row["strided"], row["balanced"], row["ours"]) >= 1 for row in rows)


def test_our_order_is_never_behind_the_stock_ones(rows):
    assert all(row["ours"] <= min(row["strided"], row["balanced"]) for row in rows)


def test_our_order_never_exceeds_the_cap(rows):
    assert all(row["ours_over_cap"] == 0 for row in rows)


def test_the_table_has_a_line_per_row(rows):
    assert packing.table(rows).row_count == len(rows)


@pytest.mark.parametrize("missed", [{"ours": 1.2}, {"ours_over_cap": 1}, {"plan_seconds": 2.0}])
def test_a_missed_goal_is_told(missed):
    met = {"rule": "under cap", "ours": 1.01, "ours_over_cap": 0, "plan_seconds": 0.1}
    assert packing.meets_goals(met) and not packing.meets_goals({**met, **missed})


def test_an_unknown_trace_is_an_error_that_names_the_nearest():
    with pytest.raises(PeriodicError, match="lognormal"):
        packing.packing_command(["lognormla"])
