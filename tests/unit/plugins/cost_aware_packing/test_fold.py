from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.cost_aware_packing.fold import foldings
from miles_periodic.plugins.cost_aware_packing.problem import StepProblem, bin_costs


@given(ranks=st.integers(1, 4), slots=st.integers(1, 4), data=st.data())
def test_every_folding_puts_exactly_two_samples_into_every_bin(ranks, slots, data):
    count = 2 * ranks * slots
    costs = data.draw(st.lists(st.floats(0, 1e3), min_size=count, max_size=count))
    problem = StepProblem(np.ones(count, dtype=np.int64), np.array(costs), ranks, samples_per_bin=2)
    packings = list(foldings(problem))
    assert packings
    assert all(np.bincount(bins).tolist() == [2] * (ranks * slots) for bins in packings)


def test_a_block_is_folded_and_the_dearest_samples_take_the_cheapest():
    costs = np.array([9.0, 8.0, 7.0, 6.0, 2.0, 1.0, 0.5, 0.0])
    problem = StepProblem(np.ones(8, dtype=np.int64), costs, 2, samples_per_bin=2)
    sums = [bin_costs(problem, bins, 4).tolist() for bins in foldings(problem)]
    assert [15.0, 15.0, 2.0, 1.5] in sums
    assert [9.0, 13.0, 8.5, 3.0] not in sums
    assert [9.0, 15.0, 6.5, 3.0] in sums
