"""Reports of training with optimizer state in host memory, each as what should happen."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.plugins.chunked_optimizer_offload.feature import ChunkedOptimizerOffload


@pytest.fixture(scope="module")
def ranks(megatron_ranks):
    worlds = megatron_ranks("0.19.2", "offloaded_training.py")
    return [rank for ranks in worlds.values() for rank in ranks]


def completed(**arguments):
    usual = {"optimizer": "adam", "use_distributed_optimizer": True}
    return ChunkedOptimizerOffload().complete_arguments({**usual, **arguments})


@pytest.mark.parametrize("sharding", ["dp_reshardable", "fully_reshardable"])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(ranks, sharding):
    """NVIDIA/Megatron-LM#1842: a resume with offload sends the loss from 0.31 to 10."""
    for rank in ranks:
        found = rank["checkpoints"][f"offloaded -> offloaded, {sharding}"]
        assert found["loaded"] and found["resumed"]


def test_a_save_works_in_every_combination_that_is_not_refused_when_arguments_are_parsed(ranks):
    """NVIDIA/Megatron-LM#2775, NVIDIA-NeMo/Megatron-Bridge#1942: offload with the precision-aware
    optimizer trains, and fails when it saves."""
    assert all(found["loaded"] for rank in ranks for found in of_checkpoints(rank))
    with pytest.raises(PeriodicError, match="--use-precision-aware-optimizer"):
        completed(use_precision_aware_optimizer=True)


def of_checkpoints(rank):
    return [found for name, found in rank["checkpoints"].items() if "->" in name]


def test_a_save_leaves_nothing_on_the_device_also_where_it_fails(ranks):
    """NovaSky-AI/SkyRL#556: after a save the optimizer stays on the GPU."""
    for rank in ranks:
        assert rank["checkpoints"]["after_save"] == {
            "told": "the disk is full",
            "placeholders": True,
            "within_workspace": True,
        }


def test_two_offloads_of_one_state_are_refused_before_they_can_poison_it():
    """NVIDIA-NeMo/RL#3544: FusedAdam with CPU offload poisons moments, NaN on resume."""
    with pytest.raises(PeriodicError, match="--optimizer-cpu-offload"):
        completed(optimizer_cpu_offload=True)


def test_no_master_is_on_the_device_in_a_forward_whose_caller_only_steps(ranks):
    """ISEEKYAN/Megatron-LM#232: a caller forgets the offload before the forward, and 6.38 GiB of
    masters stay on each GPU."""
    assert all(rank["dense"]["placeholders_in_forward"] for rank in ranks)
