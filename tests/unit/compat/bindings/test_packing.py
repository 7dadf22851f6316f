"""Miles 0.0.2's split of a batch: whatever a sample has goes where its tokens go."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from miles_periodic.compat.bindings import packing, packing_schedule
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
from miles_periodic.plugins.cost_aware_packing.settings import CostAwarePackingSettings

MODEL = {"hidden_size": 8, "num_layers": 2, "num_attention_heads": 2, "vocab_size": 32}
MODEL |= {"ffn_hidden_size": 16}
NUM_SAMPLES = 24
RAW = [0.5 + sample for sample in range(NUM_SAMPLES)]
PER_SAMPLE = ("tokens", "rewards", "loss_masks", "prompt")


class Box:
    """What Miles puts a rank's shard into."""

    def __init__(self, inner):
        self.inner = inner


def every_nth(data, dp_size):
    """As Miles splits: entries of samples by stride, the rest whole."""
    data["total_lengths"] = [len(tokens) for tokens in data["tokens"]]
    boxes = []
    for rank in range(dp_size):
        partition = range(rank, len(data["tokens"]), dp_size)
        shard = {key: [data[key][at] for at in partition] for key in PER_SAMPLE}
        shard["lengths"] = [data["total_lengths"][at] for at in partition]
        boxes.append(Box(shard | {"raw_reward": data["raw_reward"]}))
    return boxes


class Notices(list):
    """The member of a run, of which only the notices count."""

    notice = list.append


@pytest.fixture(autouse=True)
def notices(monkeypatch):
    notices = Notices()
    monkeypatch.setattr(packing_schedule, "member", lambda: notices)
    made = build_manager([CostAwarePacking(CostAwarePackingSettings(time_budget_seconds=0.0))])
    monkeypatch.setattr(packing, "manager", lambda: made)
    return notices


def arguments(**changes):
    plain = {"global_batch_size": NUM_SAMPLES // 2, "use_dynamic_batch_size": True}
    plain |= {"micro_batch_size": 1, "max_tokens_per_gpu": 40, "context_parallel_size": 1}
    plain |= {"pipeline_model_parallel_size": 1, "allgather_cp": False}
    return SimpleNamespace(**MODEL, **(plain | changes))


def batch(rewards=list):
    """Samples whose every entry tells which sample it is of."""
    return {
        "tokens": [[sample] * (1 + 7 * sample % 31) for sample in range(NUM_SAMPLES)],
        "rewards": rewards([float(sample) for sample in range(NUM_SAMPLES)]),
        "loss_masks": tuple([sample] for sample in range(NUM_SAMPLES)),
        "prompt": [str(sample) for sample in range(NUM_SAMPLES)] + ["of no sample"],
        "raw_reward": RAW,
    }


def split(num_ranks, data, **changes):
    manager_of_rollouts = SimpleNamespace(args=arguments(**changes))
    return packing.split(every_nth, manager_of_rollouts, (data, num_ranks), {})


def samples_of(box):
    return [tokens[0] for tokens in box.inner["tokens"]]


BY_ORDER_ALONE = {"use_dynamic_batch_size": False}
WAYS = pytest.mark.parametrize("changes", [{}, BY_ORDER_ALONE])


@WAYS
@pytest.mark.parametrize("rewards", [list, tuple, torch.tensor, np.array])
def test_every_entry_goes_where_its_tokens_go_whatever_holds_it(changes, rewards):
    boxes = split(3, batch(rewards), **changes)
    assert sorted(sum(map(samples_of, boxes), [])) == list(range(NUM_SAMPLES))
    for box in boxes:
        samples = samples_of(box)
        assert [int(reward) for reward in box.inner["rewards"]] == samples
        assert [mask[0] for mask in box.inner["loss_masks"]] == samples
        assert box.inner["prompt"] == [str(sample) for sample in samples]
        assert box.inner["lengths"] == [1 + 7 * sample % 31 for sample in samples]


@WAYS
def test_raw_rewards_stay_whole_and_in_the_order_of_their_groups(changes):
    assert all(box.inner["raw_reward"] == RAW for box in split(3, batch(), **changes))


def test_a_single_rank_keeps_the_batchs_order():
    (box,) = split(1, batch())
    assert samples_of(box) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_micro_batches_hold_each_sample_once_in_its_step_and_under_the_cap(num_ranks):
    trained = [set(), set()]
    for box in split(num_ranks, batch()):
        samples = samples_of(box)
        micro_batches, counts, lengths = getattr(box, packing._PLAN)
        assert lengths == [1 + 7 * sample % 31 for sample in range(NUM_SAMPLES)]
        assert len(micro_batches) == sum(counts)
        for slot, micro_batch in enumerate(micro_batches):
            members = [samples[at] for at in micro_batch]
            assert sum(lengths[sample] for sample in members) <= 40
            assert not trained[slot >= counts[0]].intersection(members)
            trained[slot >= counts[0]].update(members)
    assert trained == [set(range(12)), set(range(12, 24))]


def test_a_sample_over_the_cap_trains_alone_and_is_told(notices):
    data = batch()
    data["tokens"][5] = [5] * 41
    for box in split(3, data):
        samples = samples_of(box)
        micro_batches, _, _ = getattr(box, packing._PLAN)
        members = [[samples[at] for at in micro_batch] for micro_batch in micro_batches]
        assert all(5 not in one or one == [5] for one in members)
    (notice,) = notices
    assert "1 samples of up to 41 tokens are over the cap of 40 tokens" in notice


def test_nothing_is_told_of_samples_that_fit_or_are_counted(notices):
    split(3, batch())
    split(3, batch(), **BY_ORDER_ALONE)
    assert notices == []
