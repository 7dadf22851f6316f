from __future__ import annotations

import numpy as np
import pytest

from miles_periodic.plugins.cost_aware_packing.problem import StepProblem, slot_time_of_bins


def make_problem(num_samples=12, **rules) -> StepProblem:
    return StepProblem(np.full(num_samples, 5), np.ones(num_samples), num_ranks=2, **rules)


@pytest.mark.parametrize(
    ("rules", "fewest", "most"),
    [
        ({"max_tokens": 10}, 3, 6),
        ({"max_tokens": 11}, 3, 6),
        ({"max_tokens": 10, "slot_multiple": 4}, 4, 4),
        ({"max_tokens": None}, 1, 6),
        ({"samples_per_bin": 3}, 2, 2),
    ],
)
def test_slot_counts_are_bounded_by_the_rules(rules, fewest, most):
    problem = make_problem(**rules)
    assert (problem.fewest_slots, problem.most_slots) == (fewest, most)


def test_slot_time_of_bins_groups_the_dearest_together():
    assert slot_time_of_bins(np.array([1.0, 9.0, 8.0, 2.0]), 2) == 9.0 + 2.0
