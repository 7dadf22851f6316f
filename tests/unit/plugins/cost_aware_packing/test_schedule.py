from __future__ import annotations

import pytest

from miles_periodic.plugins.cost_aware_packing.schedule import (
    Schedule,
    check_schedule,
    rank_time,
    slot_time,
)

LENGTHS = [4, 3, 2, 1, 5, 6]


def make_schedule(microbatches, slots_per_step=(2,)) -> Schedule:
    return Schedule(microbatches, 10.0, 8.0, slots_per_step)


GOOD = (((0, 1), (2,)), ((4,), (3, 5)))


def test_slot_time_adds_up_the_dearest_micro_batch_of_each_slot():
    assert slot_time(GOOD, LENGTHS) == 7 + 7


def test_slot_time_counts_slots_that_only_one_rank_has():
    assert slot_time((((0,), (1,)), ((2,),)), LENGTHS) == 4 + 3


def test_rank_time_is_that_of_the_dearest_rank():
    assert rank_time(GOOD, LENGTHS) == 5 + 7


def test_ratio_is_slot_time_over_lower_bound():
    assert make_schedule(GOOD).ratio == 1.25


def test_ratio_of_samples_that_cost_nothing_is_one():
    assert Schedule(GOOD, 0.0, 0.0, (2,)).ratio == 1.0


def test_steps_gives_each_step_its_slots():
    assert list(make_schedule(GOOD, (1, 1)).steps()) == [
        (((0, 1),), ((4,),)),
        (((2,),), ((3, 5),)),
    ]


def test_a_good_schedule_passes():
    check_schedule(make_schedule(GOOD), LENGTHS, max_tokens=7, data_parallel_size=2)


@pytest.mark.parametrize(
    ("microbatches", "slots_per_step", "rules", "broken_rule"),
    [
        (GOOD, (2,), {"data_parallel_size": 3}, "2 ranks planned, 3 asked"),
        ((((0, 1), (2,)), ((4, 3, 5),)), (2,), {}, "rank 1 has 1 slots, expected 2"),
        (GOOD, (1, 1), {"slot_multiple": 2}, "step 0: 1 slots, no multiple of 2"),
        ((((0, 1), (2,)), ((4,), (3, 3))), (2,), {}, "exactly once"),
        ((((0, 1), (2, 4)), ((), (3, 5))), (2,), {}, "rank 1 slot 0: empty micro-batch"),
        (GOOD, (2,), {"max_tokens": 6}, "rank 0 slot 0: 7 tokens over 6"),
        (GOOD, (1, 1), {"groups": [0, 0, 0, 1, 2, 3]}, "group 0 is split over steps"),
        (GOOD, (1, 1), {"step_of_sample": [0, 0, 1, 1, 0, 0]}, "sample 5 is in step 1, not 0"),
    ],
)
def test_a_broken_rule_is_named(microbatches, slots_per_step, rules, broken_rule):
    arguments = {"max_tokens": 7, "data_parallel_size": 2, **rules}
    with pytest.raises(ValueError, match=broken_rule):
        check_schedule(make_schedule(microbatches, slots_per_step), LENGTHS, **arguments)
