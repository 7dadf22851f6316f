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


#: Arguments of which not every value is refused.
SOME_VALUES = {
    "cuda_graph_scope": ["full_iteration"],
    "cuda_graph_impl": "full_iteration",
    "non_persistent_ckpt_type": "local",
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
    wrong = SOME_VALUES.get(conflict.argument, wrong)
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


def test_a_local_checkpoint_is_refused():
    with pytest.raises(PeriodicError, match="--non-persistent-ckpt-type.*keep host memory"):
        completed(non_persistent_ckpt_type="local")


def test_the_same_writer_is_no_matter_without_a_background_save():
    assert completed(async_strategy="nvrx", async_save=False) is None


NATIVE = {
    **FINE,
    "async_save": False,
    "ckpt_format": "torch_dist",
    "chunked_optimizer_state_offload": False,
    "optimizer_state_offload_chunk_size_mb": 0,
}


def switched_on(settings=None, **changed):
    chosen = ChunkedOptimizerOffloadSettings(**settings or {})
    return ChunkedOptimizerOffload(chosen).complete_arguments({**NATIVE, **changed})


def test_an_offload_of_megatrons_own_is_switched_on_with_chunks_of_our_workspace():
    assert switched_on({"workspace_bytes": "512MiB"}) == {
        "chunked_optimizer_state_offload": True,
        "optimizer_state_offload_chunk_size_mb": 128,
    }


def test_an_offload_of_megatrons_own_takes_our_chunk_size():
    answer = switched_on({"chunk_bytes": 64 << 20})
    assert answer["optimizer_state_offload_chunk_size_mb"] == 64


def test_a_chunk_size_that_the_user_gave_megatron_stays():
    answer = switched_on({"chunk_bytes": 64 << 20}, optimizer_state_offload_chunk_size_mb=32)
    assert answer["optimizer_state_offload_chunk_size_mb"] == 32


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("optimizer_cpu_offload", True),
        ("use_megatron_fsdp", True),
        ("cuda_graph_impl", "full_iteration"),
        ("async_save", True),
        ("ckpt_format", "torch"),
    ],
)
def test_what_megatron_would_have_refused_itself_is_refused_for_it(argument, value):
    with pytest.raises(PeriodicError, match=f"--{argument.replace('_', '-')}"):
        switched_on(**{argument: value})


def test_a_background_save_without_optimizer_state_goes_with_megatrons_own():
    assert switched_on(async_save=True, no_save_optim=True)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("fp8_param_gather", True), ("use_precision_aware_optimizer", True), ("optimizer", "muon")],
)
def test_what_only_ours_cannot_have_goes_with_megatrons_own(argument, value):
    assert switched_on(**{argument: value})


def test_smaller_moments_are_refused_beside_an_offload_of_megatrons_own():
    with pytest.raises(PeriodicError, match=r"Leave chunked-optimizer-offload\.moment_dtype out"):
        switched_on({"moment_dtype": "bfloat16"})


def test_it_is_no_feature_of_the_default_set():
    assert not ChunkedOptimizerOffload.default
