from __future__ import annotations

import pytest

from miles_periodic.plugins.cost_aware_packing.steps import assign_steps


def test_without_steps_all_samples_share_one():
    assert assign_steps(3, None, None).tolist() == [0, 0, 0]


def test_a_number_of_steps_cuts_the_samples_in_order():
    assert assign_steps(6, None, 3).tolist() == [0, 0, 1, 1, 2, 2]


def test_a_number_of_steps_counts_groups_by_first_appearance():
    assert (
        assign_steps(
            5,
            [
                "b",
                "a",
                "b",
                "b",
                "c",
            ][:5],
            None,
        ).tolist()
        == [0] * 5
    )
    assert assign_steps(6, ["b", "a", "b", "c", "d", "c"], 2).tolist() == [0, 0, 0, 1, 1, 1]


def test_given_steps_are_kept():
    assert assign_steps(4, None, [1, 0, 1, 0]).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("groups", "steps", "remedy"),
    [
        (None, 3, "choose a number of steps that divides them"),
        (None, 0, "choose a number of steps that divides them"),
        (None, [0, 1], "one entry per sample"),
        ([1, 2], None, "one entry per sample"),
        (None, [0, 2, 0, 2], "number them from 0 without gaps"),
        (None, [1, 1, 1, 1], "number them from 0 without gaps"),
        (["a", "a", "b", "b"], [0, 1, 1, 1], "give all its samples the same step"),
    ],
)
def test_steps_that_do_not_fit_are_refused_with_the_remedy(groups, steps, remedy):
    with pytest.raises(ValueError, match=remedy):
        assign_steps(4, groups, steps)
