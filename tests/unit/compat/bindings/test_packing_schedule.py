"""The schedule of a Miles that plans micro-batches: its steps stay, what is in them is ours."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_rules import MAX_TOKENS, arguments, broken_rules, kept_steps, parallel, rollouts

from miles_periodic.compat.bindings import packing_schedule
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings


def in_turn(args, train_parallel_config, total_lengths, *, global_batch_size, rollout_indices):
    """A schedule in the order of the samples, one each in a micro-batch, as Miles returns it.

    What does not fill a slot goes into the last one.
    """
    num_ranks = train_parallel_config["dp_size"]
    steps = kept_steps(rollout_indices, global_batch_size)
    partitions, indices = [[] for _ in range(num_ranks)], [[] for _ in range(num_ranks)]
    for step in steps:
        for number, sample in enumerate(sorted(step)):
            rank = number % num_ranks
            if number < len(step) // num_ranks * num_ranks:
                indices[rank].append([])
            indices[rank][-1].append(len(partitions[rank]))
            partitions[rank].append(sample)
    num_microbatches = [len(step) // num_ranks for step in steps]
    return partitions, indices, num_microbatches, [global_batch_size] * len(steps)


class Notices(list):
    """The member of a run, of which only the notices count."""

    notice = list.append


@pytest.fixture(autouse=True)
def notices(monkeypatch):
    notices = Notices()
    monkeypatch.setattr(packing_schedule, "member", lambda: notices)
    use(monkeypatch, CostAwarePacking(CostAwarePackingSettings(time_budget_seconds=0.0)))
    return notices


def use(monkeypatch, *features):
    made = build_manager(features)
    monkeypatch.setattr(packing_schedule, "manager", lambda: made)


def scheduled(lengths, names, global_batch_size, config, **changes):
    given = (arguments(**changes), config, lengths)
    keywords = {"global_batch_size": global_batch_size, "rollout_indices": names}
    return packing_schedule.schedule(in_turn, None, given, keywords)


@given(batch=rollouts(), ranks=st.integers(1, 3), global_batch_size=st.integers(3, 8))
@settings(max_examples=60)
def test_a_schedule_under_a_cap_keeps_what_trainers_ask_of_it(batch, ranks, global_batch_size):
    lengths, names = batch
    steps = kept_steps(names, global_batch_size)
    try:
        found = scheduled(lengths, names, global_batch_size, parallel(ranks))
    except PeriodicError as refusal:
        assert "leaves some of them empty: raise max_tokens" in str(refusal)
        return
    assert broken_rules(found, lengths, steps, max_tokens=MAX_TOKENS) == []
    assert found[-1] == [global_batch_size] * len(steps)


@given(batch=rollouts(), ranks=st.integers(1, 2), size=st.integers(1, 3))
@settings(max_examples=60)
def test_a_schedule_of_counted_samples_keeps_what_trainers_ask_of_it(batch, ranks, size):
    lengths, names = batch
    steps = kept_steps(names, 8)
    # Miles refuses what does not fill the micro-batches of every rank.
    assume(not any(-(-len(step) // size) % ranks for step in steps))
    changes = {"use_dynamic_batch_size": False, "micro_batch_size": size}
    found = scheduled(lengths, names, 8, parallel(ranks), **changes)
    assert broken_rules(found, lengths, steps, max_samples=size) == []


def test_virtual_stages_ask_for_a_multiple_of_micro_batches():
    lengths = [30] * 10 + [5] * 6
    config = parallel(2, stages=2, group=4)
    found = scheduled(lengths, list(range(16)), 16, config)
    assert broken_rules(found, lengths, [set(range(16))], max_tokens=40, slot_multiple=4) == []
    assert found[2] == [8]


def test_a_sample_over_the_cap_is_alone_in_its_micro_batch_and_told(notices):
    lengths = [70, 1, 1, 1]
    partitions, indices, *_ = scheduled(lengths, [0, 1, 2, 3], 4, parallel(2))
    (rank,) = (rank for rank in range(2) if 0 in partitions[rank])
    assert [partitions[rank].index(0)] in indices[rank]
    assert "1 samples of up to 70 tokens are over the cap of 40" in notices[0]


def test_samples_are_as_long_as_context_parallel_chunks_make_them():
    lengths = [17] * 4
    micro_batches = scheduled(lengths, [0, 1, 2, 3], 4, parallel(1, context=4))[1][0]
    assert max(map(len, micro_batches)) == 4
    tight = scheduled(lengths, [0] * 4, 1, parallel(1, context=4), max_tokens_per_gpu=17)[1][0]
    assert max(map(len, tight)) == 2


def test_a_row_that_is_cut_once_pads_no_sample():
    changes = {"max_tokens_per_gpu": 17, "allgather_cp": True}
    micro_batches = scheduled([17] * 4, [0] * 4, 1, parallel(1, context=4), **changes)[1][0]
    assert max(map(len, micro_batches)) == 4


def test_a_batch_that_no_feature_splits_is_miles_own(monkeypatch):
    class Declines(Feature):
        slug = "declines"
        why = "Declines."
        exit = "Never."

        @hookimpl
        def split_train_batch(self, batch):
            return None

    use(monkeypatch, Declines(Declines.settings_model()))
    given = (arguments(), parallel(2), [5, 6, 7, 8])
    keywords = {"global_batch_size": 4, "rollout_indices": [0, 1, 2, 3]}
    planned = packing_schedule.schedule(in_turn, None, given, keywords)
    assert planned == in_turn(*given, **keywords)


def test_a_step_that_cannot_be_packed_ends_with_what_to_change():
    config = parallel(2, stages=2, group=4)
    with pytest.raises(PeriodicError, match="lower data_parallel_size or slot_multiple"):
        scheduled([5, 6, 7, 8], [0, 1, 2, 3], 4, config)


def test_a_batch_that_miles_splits_without_a_plan_is_told_once(notices):
    packing_schedule._tell_unplanned.cache_clear()
    for _ in range(2):
        assert packing_schedule.unplanned(lambda data: data, None, ("shards",), {}) == "shards"
    assert len(notices) == 1 and "several LoRA" in notices[0]
