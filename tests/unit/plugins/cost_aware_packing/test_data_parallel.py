from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.cost_aware_packing.data_parallel import (
    SplitPlan,
    split,
)
from miles_periodic.plugins.cost_aware_packing.schedule import check_schedule, slot_time

MAX_TOKENS = 100


@st.composite
def batches(draw):
    """Lengths, ranks, micro-batch size and global batch size that divide each other."""
    ranks, size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    global_batch_size = ranks * size * draw(st.integers(1, 3))
    num_samples = global_batch_size * draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, MAX_TOKENS), min_size=num_samples, max_size=num_samples))
    return lengths, ranks, size, global_batch_size


def consecutive_runs(plan: SplitPlan, size: int) -> list[list[tuple[int, ...]]]:
    """The micro-batches that a trainer cuts from each rank's order, `size` samples at a time."""
    return [
        [tuple(order[start : start + size]) for start in range(0, len(order), size)]
        for order in plan.partitions
    ]


def split_unless_too_few(lengths: list[int], ranks: int, **rules) -> SplitPlan | None:
    """The plan, or None where a step has too few samples, which is the only refusal there is."""
    try:
        return split(lengths, ranks, cost=lengths, **rules)
    except ValueError as refusal:
        assert "put more samples into a step" in str(refusal)
        return None


def step_of_sample(num_samples: int, global_batch_size: int) -> np.ndarray:
    return np.arange(num_samples) // global_batch_size


@given(batch=batches(), time_budget=st.sampled_from([0.0, 0.01]))
@settings(max_examples=100, deadline=None)
def test_fixed_size_orders_alone_carry_the_plan(batch, time_budget):
    lengths, ranks, size, global_batch_size = batch
    plan = split(
        lengths,
        ranks,
        cost=lengths,
        global_batch_size=global_batch_size,
        micro_batch_size=size,
        time_budget=time_budget,
    )
    assert consecutive_runs(plan, size) == [list(rank) for rank in plan.schedule.microbatches]
    assert {len(order) for order in plan.partitions} == {len(lengths) // ranks}
    check_schedule(
        plan.schedule,
        lengths,
        max_tokens=None,
        data_parallel_size=ranks,
        step_of_sample=step_of_sample(len(lengths), global_batch_size),
    )


@given(batch=batches())
@settings(max_examples=60, deadline=None)
def test_fixed_size_steps_are_the_runs_of_local_samples_that_the_trainer_takes(batch):
    lengths, ranks, size, global_batch_size = batch
    plan = split(
        lengths,
        ranks,
        cost=lengths,
        global_batch_size=global_batch_size,
        micro_batch_size=size,
        time_budget=0,
    )
    local_size = global_batch_size // ranks
    for order in plan.partitions:
        steps = [sample // global_batch_size for sample in order]
        assert steps == [position // local_size for position in range(len(order))]


@given(batch=batches())
@settings(max_examples=60, deadline=None)
def test_one_sample_per_micro_batch_is_optimal(batch):
    lengths, ranks, _, global_batch_size = batch
    plan = split(
        lengths, ranks, cost=lengths, global_batch_size=global_batch_size, micro_batch_size=1
    )
    assert plan.schedule.ratio == pytest.approx(1.0)


@given(batch=batches(), multiple=st.integers(1, 2), time_budget=st.sampled_from([0.0, 0.01]))
@settings(max_examples=100, deadline=None)
def test_capped_micro_batches_tile_each_rank_and_keep_the_rules(batch, multiple, time_budget):
    lengths, ranks, _, global_batch_size = batch
    plan = split_unless_too_few(
        lengths,
        ranks,
        global_batch_size=global_batch_size,
        max_tokens=MAX_TOKENS,
        slot_multiple=multiple,
        time_budget=time_budget,
    )
    if plan is None:
        return
    check_schedule(
        plan.schedule,
        lengths,
        max_tokens=MAX_TOKENS,
        data_parallel_size=ranks,
        slot_multiple=multiple,
        step_of_sample=step_of_sample(len(lengths), global_batch_size),
    )
    for order, local, samples in zip(
        plan.partitions, plan.microbatches, plan.schedule.microbatches, strict=True
    ):
        assert [i for micro_batch in local for i in micro_batch] == list(range(len(order)))
        assert [tuple(order[i] for i in micro_batch) for micro_batch in local] == list(samples)


@given(
    lengths=st.lists(st.integers(1, MAX_TOKENS), min_size=6, max_size=40),
    ranks=st.integers(1, 3),
    most=st.integers(1, 4),
    capped=st.booleans(),
    time_budget=st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=100, deadline=None)
def test_no_micro_batch_holds_more_samples_than_allowed(lengths, ranks, most, capped, time_budget):
    steps = [0] * (len(lengths) // 2) + [1] * (len(lengths) - len(lengths) // 2)
    max_tokens = MAX_TOKENS if capped else None
    plan = split_unless_too_few(
        lengths,
        ranks,
        steps=steps,
        max_tokens=max_tokens,
        max_samples=most,
        time_budget=time_budget,
    )
    if plan is None:
        return
    check_schedule(
        plan.schedule,
        lengths,
        max_tokens=max_tokens,
        data_parallel_size=ranks,
        step_of_sample=steps,
    )
    assert max(len(one) for rank in plan.microbatches for one in rank) <= most


@pytest.mark.parametrize("seed", range(4))
def test_capped_sample_counts_are_equal_on_a_long_tailed_trace(lognormal_trace, seed):
    lengths, costs = lognormal_trace(256, seed)
    plan = split(lengths, 8, cost=costs, global_batch_size=128, max_tokens=131072)
    assert plan.has_equal_counts and plan.schedule.ratio <= 1.04


@pytest.mark.parametrize("size", [2, 4])
def test_a_fixed_size_is_balanced_better_than_by_stride(lognormal_trace, size):
    lengths, costs = lognormal_trace(256, 0)
    plan = split(lengths, 8, cost=costs, global_batch_size=256, micro_batch_size=size)
    ranks = [range(rank, 256, 8) for rank in range(8)]
    strided = [[row[i : i + size] for i in range(0, len(row), size)] for row in ranks]
    assert plan.schedule.slot_time < 0.6 * slot_time(strided, costs)


def test_dear_samples_share_micro_batches_where_that_levels_them():
    costs = [20.0, 19.0, 12.0, 11.0] + [1.0] * 4
    plan = split([1] * 8, 2, cost=costs, global_batch_size=8, micro_batch_size=2, time_budget=0)
    assert plan.schedule.slot_time == 31.0 + 2.0


@pytest.mark.parametrize(
    ("num_samples", "changes", "remedy"),
    [
        (8, {"micro_batch_size": 1, "max_tokens": 9}, "pass either micro_batch_size, or"),
        (8, {}, "pass either micro_batch_size, or"),
        (8, {"max_tokens": 9, "global_batch_size": None}, "exactly one of global_batch_size and"),
        (9, {"micro_batch_size": 1}, "trim the batch"),
        (0, {"micro_batch_size": 1}, "trim the batch"),
        (8, {"micro_batch_size": 3}, "change the number of samples in a step, or"),
        (8, {"micro_batch_size": 0}, "pass 1 or more"),
        (8, {"max_tokens": 3}, "raise max_tokens to 5"),
        (8, {"max_tokens": 5, "slot_multiple": 5}, "lower data_parallel_size or slot_multiple"),
    ],
)
def test_batches_that_do_not_divide_are_refused_with_the_remedy(num_samples, changes, remedy):
    arguments = {"cost": [1.0] * num_samples, "global_batch_size": 4, **changes}
    with pytest.raises(ValueError, match=remedy):
        split([5] * num_samples, 2, **arguments)
