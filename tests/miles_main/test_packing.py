"""The schedule of Miles at git main, by its own function with ours around it.

The first half calls that function alone (it needs no more than the standard library); the last
tests split a whole batch in a process that is bound as in a run.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from miles_trees import MAIN
from schedule_rules import MAX_TOKENS, arguments, broken_rules, kept_steps, parallel, rollouts

from miles_periodic.cli.bench import stock_orders
from miles_periodic.compat.apply import apply_binding
from miles_periodic.compat.bindings import packing_schedule
from miles_periodic.compat.catalog import bindings_named
from miles_periodic.compat.matrix.called import calls
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings

PROCESS = Path(__file__).parents[1] / "lines" / "schedule_process.py"
TIMEOUT_SECONDS = 900
SCHEDULES = "miles.utils.dp_schedule"


@pytest.fixture(scope="module")
def module(miles_tree):
    """That module of the checkout, although another Miles is installed."""
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_miles(name)}
    for name in ("miles", "miles.utils"):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(miles_tree.joinpath(*name.split(".")))]
    loaded = importlib.import_module(SCHEDULES)
    for name in [name for name in sys.modules if _is_miles(name)]:
        del sys.modules[name]
    sys.modules.update(held)
    return loaded


def _is_miles(name: str) -> bool:
    return name == "miles" or name.startswith("miles.")


@pytest.fixture(scope="module")
def stock(module):
    """Miles's own function."""
    return vars(module)["build_dp_schedule"]


@pytest.fixture(scope="module")
def ours(module, stock):
    """The same with the binding around it, as a run has it."""
    made = build_manager([CostAwarePacking(CostAwarePackingSettings(time_budget_seconds=0.0))])
    patch = pytest.MonkeyPatch()
    patch.setattr(packing_schedule, "manager", lambda: made)
    patch.setattr(packing_schedule, "member", lambda: SimpleNamespace(notice=lambda text: None))
    (binding,) = bindings_named(["training/schedule"])
    apply_binding(binding, module)
    yield module.build_dp_schedule
    module.build_dp_schedule = stock
    patch.undo()


@given(
    batch=rollouts(),
    ranks=st.integers(1, 4),
    context=st.sampled_from([1, 2]),
    global_batch_size=st.integers(3, 8),
    flags=st.sampled_from([{}, {"balance_data": True}, {"balance_by_flops": True}]),
)
@settings(max_examples=150)
def test_a_schedule_under_a_cap_keeps_what_trainers_ask_of_it(
    stock, ours, batch, ranks, context, global_batch_size, flags
):
    lengths, names = batch
    given_ = (arguments(**flags), parallel(ranks, context=context), lengths)
    keywords = {"global_batch_size": global_batch_size, "rollout_indices": names}
    try:
        stock(*given_, **keywords)
    except AssertionError:
        assume(False)
    try:
        found = ours(*given_, **keywords)
    except PeriodicError as refusal:
        # Miles's balance by FLOPs has fewer micro-batches than the cap asks for.
        assert "balance_by_flops" in flags and "leaves some of them empty" in str(refusal)
        return
    steps = kept_steps(names, global_batch_size)
    assert broken_rules(found, lengths, steps, max_tokens=MAX_TOKENS * context) == []
    assert found[-1] == [global_batch_size] * len(steps)


@given(batch=rollouts(), ranks=st.integers(1, 3), size=st.integers(1, 3), virtual=st.booleans())
@settings(max_examples=150)
def test_a_schedule_of_counted_samples_keeps_what_trainers_ask_of_it(
    stock, ours, batch, ranks, size, virtual
):
    lengths, names = batch
    args = arguments(use_dynamic_batch_size=False, micro_batch_size=size)
    config = parallel(ranks, stages=2, group=2) if virtual else parallel(ranks)
    keywords = {"global_batch_size": 8, "rollout_indices": names}
    try:
        stock(args, config, lengths, **keywords)
    except AssertionError:
        assume(False)
    found = ours(args, config, lengths, **keywords)
    steps = kept_steps(names, 8)
    multiple = 2 if virtual else 1
    assert broken_rules(found, lengths, steps, max_samples=size, slot_multiple=multiple) == []


@given(batch=rollouts(), ranks=st.integers(1, 2), group=st.integers(2, 3))
@settings(max_examples=60)
def test_virtual_stages_get_a_multiple_of_micro_batches(stock, ours, batch, ranks, group):
    lengths, names = batch
    given_ = (arguments(), parallel(ranks, stages=2, group=group), lengths)
    keywords = {"global_batch_size": 8, "rollout_indices": names}
    try:
        stock(*given_, **keywords)
    except AssertionError:
        assume(False)
    steps = kept_steps(names, 8)
    found = ours(*given_, **keywords)
    assert broken_rules(found, lengths, steps, max_tokens=MAX_TOKENS, slot_multiple=group) == []


def test_a_last_step_of_fewer_rollouts_is_planned_where_miles_allows_it(ours):
    names, lengths = [0, 0, 1, 2, 2, 3, 4, 4], [3] * 8
    args = arguments(allow_partial_train_step=True)
    found = ours(args, parallel(1), lengths, global_batch_size=2, rollout_indices=names)
    assert found[-1] == [2, 2, 1]
    assert broken_rules(found, lengths, [{0, 1, 2}, {3, 4, 5}, {6, 7}], max_tokens=40) == []


@pytest.mark.parametrize(
    ("names", "changes", "refusal"),
    [
        ([0, 0, 1, 1, 2, 2], {}, "global_batch_size"),
        (range(8), {"use_dynamic_batch_size": False, "micro_batch_size": 3}, "static path"),
    ],
)
def test_what_miles_refuses_it_still_refuses_in_its_own_words(ours, names, changes, refusal):
    lengths = [10] * len(names)
    with pytest.raises(AssertionError, match=refusal):
        ours(
            arguments(**changes),
            parallel(2),
            lengths,
            global_batch_size=8 if changes else 4,
            rollout_indices=list(names),
        )


@given(
    lengths=st.lists(st.integers(1, MAX_TOKENS), min_size=8, max_size=40),
    ranks=st.integers(1, 4),
    order=st.sampled_from(["in turn", "by tokens", "by FLOPs"]),
)
@settings(max_examples=150)
def test_the_stock_orders_of_the_benchmark_are_those_of_miles(module, stock, lengths, ranks, order):
    args = arguments(balance_data=order == "by tokens", balance_by_flops=order == "by FLOPs")
    keywords = {"global_batch_size": len(lengths), "rollout_indices": list(range(len(lengths)))}
    try:
        partitions, indices, *_ = stock(args, parallel(ranks), lengths, **keywords)
    except AssertionError:
        assume(False)
    theirs = [
        [[partition[position] for position in micro_batch] for micro_batch in rank]
        for partition, rank in zip(partitions, indices, strict=True)
    ]
    flops = module._calculate_workloads(lengths, args)
    assert (
        stock_orders.planned_first(lengths, ranks, MAX_TOKENS, order=order, flops=flops) == theirs
    )


@pytest.fixture(scope="module")
def split(miles_tree):
    command = [sys.executable, str(PROCESS), str(miles_tree)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_whole_batch_is_split_by_the_plan_in_a_process_of_a_run(split):
    assert split["broken"] == []
    assert split["counts"]["training/schedule"] == 1


def test_the_bindings_that_split_it_stand_on_file(split):
    assert set(split["counts"]) == calls()[MAIN]["tests/miles_main/test_packing.py"]


def test_every_field_of_a_sample_goes_where_its_tokens_go(split):
    assert split["misplaced"] == []


def test_the_iterator_hands_out_the_planned_micro_batches(split):
    assert split["iterated"] == split["planned"]
    assert split["num_microbatches"] == split["given_num_microbatches"]


def test_a_batch_that_miles_splits_without_a_plan_is_told(split):
    assert split["counts"]["training/unplanned-split"] == 1
    assert any("had no part in it" in notice for notice in split["notices"])
