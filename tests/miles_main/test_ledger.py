"""What the ledger says of Miles at git main: merged changes are in it, open ones are not."""

import pytest

from miles_periodic.compat.conditions import judge
from miles_periodic.compat.tree import Tree
from miles_periodic.upstream.rows import ledger

ROWS = [row for row in ledger().values() if row.upstream == "miles" and row.probe is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_change_is_in_main_where_the_ledger_says_so(miles_tree, row):
    verdict = judge(row.probe, Tree.at("miles", miles_tree))
    assert verdict.holds == bool(row.applied_upstream), "\n".join(map(str, verdict.evidence))
