"""Arguments that cannot go together are refused by name; a native offload is switched on."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.plugins.chunked_optimizer_offload.conflicts import CONFLICTS
from miles_periodic.plugins.chunked_optimizer_offload.feature import ChunkedOptimizerOffload
from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    ChunkedOptimizerOffloadSettings,
)

#: What Miles parses where nothing of ours is in the way.
FINE = {
    "train_backend": "megatron",
    "optimizer": "adam",
    "use_distributed_optimizer": True,
    "bf16": True,
    "offload_train": True,
    "colocate": True,
    "overlap_param_gather": True,
    "rematerialize_param_from_master_weight": True,
    "async_save": True,
    "async_strategy": "mcore",
    "cuda_graph_scope": ["attn"],
    "lora_rank": 0,
    "optimizer_cpu_offload": False,
}


def completed(**changed):
    return ChunkedOptimizerOffload().complete_arguments({**FINE, **changed})


def test_a_command_line_that_it_goes_with_is_left_alone():
    assert completed() is None


def test_an_argument_that_a_tree_does_not_have_conflicts_with_nothing():
    assert ChunkedOptimizerOffload().complete_arguments({}) is None


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda conflict: conflict.argument)
def test_an_argument_that_cannot_be_had_is_refused_by_its_name(conflict):
    wrong = "another" if isinstance(conflict.allowed, str) else conflict.allowed is None
    with pytest.raises(PeriodicError) as caught:
        completed(**{conflict.argument: wrong})
    told = str(caught.value)
    assert f"--{conflict.argument.replace('_', '-')}" in told
    assert conflict.why in told
    assert "take the feature out with -chunked-optimizer-offload" in told


@pytest.mark.parametrize(
    "changed",
    [
        {"cuda_graph_scope": ["full_iteration"]},
        {"cuda_graph_scope": "full_iteration"},
        {"cuda_graph_impl": "full_iteration"},
    ],
)
def test_a_graph_of_a_whole_iteration_is_refused(changed):
    with pytest.raises(PeriodicError, match="CUDA graph cannot hold a step"):
        completed(**changed)


def test_a_background_writer_that_keeps_host_memory_is_refused_with_the_one_that_does_not():
    with pytest.raises(PeriodicError, match="Give --async-strategy mcore"):
        completed(async_strategy="nvrx")


def test_a_local_checkpoint_is_refused_with_the_kind_that_can_be_had():
    with pytest.raises(PeriodicError, match="Give --non-persistent-ckpt-type global"):
        completed(non_persistent_ckpt_type="local")


def test_the_same_writer_is_no_matter_without_a_background_save():
    assert completed(async_strategy="nvrx", async_save=False) is None


def test_an_offload_of_megatrons_own_is_switched_on():
    assert completed(chunked_optimizer_state_offload=False) == {
        "chunked_optimizer_state_offload": True
    }


def test_an_offload_of_megatrons_own_takes_our_chunk_size():
    feature = ChunkedOptimizerOffload(ChunkedOptimizerOffloadSettings(chunk_mib=64))
    answer = feature.complete_arguments({**FINE, "chunked_optimizer_state_offload": False})
    assert answer["optimizer_state_offload_chunk_size_mb"] == 64


def test_smaller_moments_are_refused_beside_an_offload_of_megatrons_own():
    feature = ChunkedOptimizerOffload(ChunkedOptimizerOffloadSettings(moment_dtype="bfloat16"))
    with pytest.raises(PeriodicError, match=r"Leave chunked-optimizer-offload\.moment_dtype out"):
        feature.complete_arguments({**FINE, "chunked_optimizer_state_offload": False})


def test_it_is_no_feature_of_the_default_set():
    assert not ChunkedOptimizerOffload.default
