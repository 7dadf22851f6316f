"""Megatron's own packing scheduler: groups in its form, the same on every rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_rules import MAX_TOKENS, arguments

from miles_periodic.compat.bindings import packing_megatron
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings


def use(feature):
    made = build_manager([feature])
    packing_megatron.manager = lambda: made


@pytest.fixture(autouse=True)
def feature(monkeypatch, stub):
    monkeypatch.setattr(packing_megatron, "manager", None)
    stub("megatron.training", get_args=arguments)
    use(CostAwarePacking(CostAwarePackingSettings()))


def scheduler(ranks=2, context=1, group=None, **more):
    return SimpleNamespace(
        max_seqlen_per_dp_cp_rank=MAX_TOKENS,
        cp_size=context,
        dp_size=ranks,
        microbatch_group_size_per_vp_stage=group,
        **more,
    )


def grouped(lengths, instance):
    def in_order(sample_id_seqlens):
        return "in order"

    return packing_megatron.groups(in_order, instance, (list(enumerate(lengths)),), {})


@given(
    lengths=st.lists(st.integers(1, MAX_TOKENS // 2), min_size=16, max_size=60),
    ranks=st.integers(1, 4),
    context=st.sampled_from([1, 2, 4]),
    group=st.sampled_from([None, 2]),
)
@settings(max_examples=60)
def test_every_sample_is_in_one_group_and_on_all_its_context_ranks(lengths, ranks, context, group):
    found = grouped(lengths, scheduler(ranks, context, group))
    assert len(found) % (group or 1) == 0
    assert {len(slot) for slot in found} == {ranks * context}
    once = [slot[first] for slot in found for first in range(0, ranks * context, context)]
    assert sorted(sample for one in once for sample in one) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in one) <= MAX_TOKENS * context for one in once)
    for slot in found:
        for rank in range(ranks):
            shared = slot[rank * context : (rank + 1) * context]
            assert all(one == shared[0] for one in shared)


def test_ranks_that_plan_for_themselves_find_the_same():
    lengths = [(37 * number) % MAX_TOKENS + 1 for number in range(300)]
    assert grouped(lengths, scheduler(8)) == grouped(lengths, scheduler(8))


def test_no_micro_batch_holds_more_sequences_than_its_static_room():
    found = grouped([1] * 24, scheduler(2, max_num_seqs=3))
    assert max(len(one) for slot in found for one in slot) == 3


def test_a_sample_over_the_cap_is_alone_as_with_megatron():
    found = grouped([MAX_TOKENS + 9, 1, 1, 1], scheduler())
    assert [0] in [one for slot in found for one in slot]


def test_too_few_samples_end_the_step_with_what_to_change():
    with pytest.raises(PeriodicError, match="lower data_parallel_size"):
        grouped([5], scheduler())


def test_what_no_feature_splits_is_megatrons_own():
    class Declines(Feature):
        slug = "declines"
        why = "Declines."
        exit = "Never."

        @hookimpl
        def split_train_batch(self, batch):
            return None

    use(Declines(Declines.settings_model()))
    assert grouped([5, 6], scheduler()) == "in order"
