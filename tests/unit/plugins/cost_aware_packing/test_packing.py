from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.cost_aware_packing.packing import pack
from miles_periodic.plugins.cost_aware_packing.schedule import (
    check_schedule,
    rank_time,
    slot_time,
)
from miles_periodic.plugins.cost_aware_packing.steps import assign_steps

MAX_TOKENS = 100

lengths_and_costs = st.lists(
    st.tuples(st.integers(1, MAX_TOKENS), st.floats(0, 1e6)), min_size=1, max_size=60
)
budgets = st.sampled_from([0.0, 0.02])


@given(
    samples=lengths_and_costs,
    ranks=st.integers(1, 6),
    multiple=st.integers(1, 3),
    time_budget=budgets,
    seed=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_every_schedule_keeps_the_rules(samples, ranks, multiple, time_budget, seed):
    lengths, costs = map(list, zip(*samples, strict=True))
    assume(len(samples) >= ranks * multiple)
    try:
        schedule = pack(
            lengths,
            cost=costs,
            max_tokens=MAX_TOKENS,
            data_parallel_size=ranks,
            slot_multiple=multiple,
            time_budget=time_budget,
            seed=seed,
        )
    except ValueError as refusal:
        assert "raise max_tokens" in str(refusal)
        return
    check_schedule(
        schedule,
        lengths,
        max_tokens=MAX_TOKENS,
        data_parallel_size=ranks,
        slot_multiple=multiple,
    )
    assert schedule.slot_time == slot_time(schedule.microbatches, costs)
    assert schedule.lower_bound <= schedule.slot_time


@given(
    samples=st.lists(
        st.tuples(st.integers(1, MAX_TOKENS // 4), st.integers(0, 9)), min_size=24, max_size=60
    ),
    ranks=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_groups_stay_in_one_step_and_keep_their_order(samples, ranks):
    lengths, groups = map(list, zip(*samples, strict=True))
    num_steps = next(k for k in (3, 2, 1) if len(set(groups)) % k == 0)
    step_of_sample = assign_steps(len(lengths), groups, num_steps)
    assume(np.bincount(step_of_sample).min() >= 4 * ranks)
    schedule = pack(
        lengths,
        cost=lengths,
        max_tokens=MAX_TOKENS,
        data_parallel_size=ranks,
        groups=groups,
        steps=num_steps,
        time_budget=0,
    )
    check_schedule(
        schedule,
        lengths,
        max_tokens=MAX_TOKENS,
        data_parallel_size=ranks,
        groups=groups,
        step_of_sample=step_of_sample,
    )
    assert len(schedule.slots_per_step) == num_steps


@given(
    rollouts=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, MAX_TOKENS // 3)), min_size=6, max_size=24
    ),
    ranks=st.integers(1, 3),
    multiple=st.integers(1, 2),
    num_steps=st.integers(1, 3),
    time_budget=budgets,
)
@settings(max_examples=100, deadline=None)
def test_whole_rollouts_in_steps_of_multiples_keep_every_rule_at_once(
    rollouts, ranks, multiple, num_steps, time_budget
):
    rollouts = rollouts[: len(rollouts) // num_steps * num_steps]
    groups = [name for name, (size, _) in enumerate(rollouts) for _ in range(size)]
    lengths = [length for size, length in rollouts for _ in range(size)]
    steps = assign_steps(len(lengths), groups, num_steps)
    assume(np.bincount(steps).min() >= ranks * multiple)
    rules = {"max_tokens": MAX_TOKENS, "data_parallel_size": ranks, "slot_multiple": multiple}
    try:
        schedule = pack(
            lengths,
            cost=[float(length) ** 1.5 for length in lengths],
            groups=groups,
            steps=num_steps,
            time_budget=time_budget,
            **rules,
        )
    except ValueError as refusal:
        assert "raise max_tokens" in str(refusal)
        return
    check_schedule(schedule, lengths, groups=groups, step_of_sample=steps, **rules)
    assert schedule.lower_bound <= schedule.slot_time
    assert schedule.ratio == pytest.approx(schedule.slot_time / schedule.lower_bound)


@given(lengths=st.permutations([90, 70, 55, 40, 33, 21, 13, 8, 5, 3, 2, 1]))
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_samples_does_not_change_the_slot_time(lengths):
    schedule = pack(
        lengths, cost=lengths, max_tokens=MAX_TOKENS, data_parallel_size=2, time_budget=0
    )
    in_order = pack(
        sorted(lengths),
        cost=sorted(lengths),
        max_tokens=MAX_TOKENS,
        data_parallel_size=2,
        time_budget=0,
    )
    assert schedule.slot_time == pytest.approx(in_order.slot_time)


@pytest.mark.parametrize("num_samples", [128, 1024])
@pytest.mark.parametrize("seed", range(4))
def test_long_tailed_traces_come_within_three_percent_of_the_bound(
    lognormal_trace, num_samples, seed
):
    lengths, costs = lognormal_trace(num_samples, seed)
    schedule = pack(lengths, cost=costs, max_tokens=131072, data_parallel_size=8)
    assert schedule.ratio <= 1.03


def test_a_large_trace_comes_within_three_percent_of_the_bound(lognormal_trace):
    lengths, costs = lognormal_trace(10_000, 0)
    schedule = pack(lengths, cost=costs, max_tokens=131072, data_parallel_size=8)
    check_schedule(schedule, lengths, max_tokens=131072, data_parallel_size=8)
    assert schedule.ratio <= 1.03


def test_without_search_the_same_arguments_give_the_same_schedule(lognormal_trace):
    lengths, costs = lognormal_trace(128, 0)
    arguments = {"cost": costs, "max_tokens": 131072, "data_parallel_size": 8, "time_budget": 0}
    assert pack(lengths, **arguments) == pack(lengths, **arguments)


def test_rank_totals_are_level_where_slots_are_not(lognormal_trace):
    lengths, costs = lognormal_trace(1024, 0)
    schedule = pack(lengths, cost=costs, max_tokens=131072, data_parallel_size=8, time_budget=0)
    assert rank_time(schedule.microbatches, costs) <= 1.01 * costs.sum() / 8


def test_a_trace_with_one_giant_costs_no_more_than_the_giant():
    lengths = [100] + [1] * 70
    schedule = pack(lengths, cost=[100.0**2] + [1.0] * 70, max_tokens=100, data_parallel_size=4)
    assert schedule.slot_time == 100.0**2 and schedule.ratio == 1.0


def test_a_cap_that_only_first_fit_meets_is_met():
    lengths = [6, 5, 5, 4, 4, 3, 3, 3, 3, 2, 2]
    schedule = pack(lengths, cost=[1.0] * 11, max_tokens=10, data_parallel_size=4)
    check_schedule(schedule, lengths, max_tokens=10, data_parallel_size=4)


def test_samples_that_cost_nothing_still_make_no_empty_micro_batch():
    schedule = pack([1] * 9, cost=[0.0] * 9, max_tokens=3, data_parallel_size=3, slot_multiple=3)
    check_schedule(schedule, [1] * 9, max_tokens=3, data_parallel_size=3, slot_multiple=3)
    assert schedule.ratio == 1.0


@pytest.mark.parametrize(
    ("lengths", "changes", "remedy"),
    [
        ([5, 101, 7], {}, "raise max_tokens to 101"),
        ([5, 0, 7], {}, "drop it before packing"),
        ([5], {}, "lower data_parallel_size"),
        ([], {}, "lower data_parallel_size"),
        ([5, 6, 7], {"slot_multiple": 2}, "lower data_parallel_size or slot_multiple"),
        ([5.5, 6.0], {}, "pass whole numbers of tokens"),
        ([5, 6], {"cost": [1.0]}, "one entry per sample"),
        ([5, 6], {"cost": [1.0, -1.0]}, "pass finite costs of 0 or more"),
        ([5, 6], {"cost": [1.0, float("nan")]}, "pass finite costs of 0 or more"),
        ([5, 6], {"data_parallel_size": 0}, "pass 1 or more"),
        ([5, 6], {"time_budget": -1.0}, "pass seconds, 0 or more"),
        ([60, 60, 60], {}, "raise max_tokens, lower data_parallel_size"),
        ([5, 6, 7, 8], {"steps": 3}, "choose a number of steps that divides them"),
        ([5, 6, 7, 8], {"steps": [0, 0, 0, 1]}, "put more samples into a step"),
    ],
)
def test_input_that_cannot_be_packed_is_refused_with_the_remedy(lengths, changes, remedy):
    arguments = {
        "cost": [1.0] * len(lengths),
        "max_tokens": 100,
        "data_parallel_size": 2,
        **changes,
    }
    with pytest.raises(ValueError, match=remedy):
        pack(lengths, **arguments)


def test_numpy_counts_are_taken_and_fractions_refused():
    counts = {"max_tokens": np.int64(10), "data_parallel_size": np.int32(2)}
    assert pack([1, 2, 3, 4], cost=[1, 2, 3, 4], **counts).slot_time == 5
    with pytest.raises(ValueError, match="max_tokens is 10.0: pass 1 or more"):
        pack([1, 2], cost=[1, 2], max_tokens=10.0, data_parallel_size=2)
