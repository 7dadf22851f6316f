from __future__ import annotations

import pytest

from miles_periodic.cli.bench import packing
from miles_periodic.hooks.errors import PeriodicError


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return packing.measure(
        sample_counts=(64,),
        data_parallel_sizes=(8, 16),
        traces=("lognormal",),
        seeds=(0,),
        time_budget=0,
    )


def test_every_rule_is_measured_and_the_cap_with_all_ranks(rows):
    assert [(row["data_parallel_size"], row["rule"]) for row in rows] == [
        (8, "under cap"),
        (8, "of 1"),
        (8, "of 2"),
        (16, "under cap"),
    ]


def test_a_cap_is_measured_against_the_orders_of_three_upstreams(rows):
    assert list(rows[0]["orders"]) == [
        "0.0.2",
        "0.0.2 balance-data",
        "main",
        "main balance-data",
        "main balance-by-flops",
        "Megatron dp_balanced",
        "ours",
    ]


def test_only_an_order_that_breaks_the_cap_may_be_below_the_bound(rows):
    measured = [order for row in rows for order in row["orders"].values()]
    assert all(order["ratio"] >= 1 - 1e-12 for order in measured if not order["over_cap"])


def test_our_order_is_never_behind_one_that_keeps_the_cap(rows):
    for row in rows:
        kept = [order["ratio"] for order in row["orders"].values() if not order["over_cap"]]
        assert row["orders"]["ours"]["ratio"] <= min(kept)


def test_our_order_never_exceeds_the_cap(rows):
    assert all(row["orders"]["ours"]["over_cap"] == 0 for row in rows)


def test_the_table_has_a_line_per_row_and_shows_what_is_over_the_cap(rows):
    shown = packing.table(rows)
    assert shown.row_count == len(rows)
    assert packing._cell({"ratio": 1.2345, "over_cap": 3}) == "1.234 (3)"


@pytest.mark.parametrize("missed", [{"ratio": 1.2}, {"over_cap": 1}, {"seconds": 2.0}])
def test_a_missed_goal_is_told(missed):
    met = {"ratio": 1.01, "over_cap": 0, "seconds": 0.1}
    assert packing.meets_goals({"rule": "under cap", "orders": {"ours": met}})
    assert not packing.meets_goals({"rule": "under cap", "orders": {"ours": {**met, **missed}}})


def test_an_unknown_trace_is_an_error_that_names_the_nearest():
    with pytest.raises(PeriodicError, match="lognormal"):
        packing.packing_command(["lognormla"])
