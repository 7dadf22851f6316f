"""The hooks: what a command line may ask for, and what is said of a tensor beyond the bound."""

import logging

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.manager import build_manager
from miles_periodic.hooks.values import CheckpointEntry
from miles_periodic.plugins.chunked_checkpoint_staging.feature import ChunkedCheckpointStaging
from miles_periodic.plugins.chunked_checkpoint_staging.settings import (
    ChunkedCheckpointStagingSettings,
)

MEBIBYTE = 1 << 20
SAVES = {"save": "/out", "ckpt_format": "torch_dist", "async_save": False}


def hook(**settings):
    feature = ChunkedCheckpointStaging(ChunkedCheckpointStagingSettings(**settings))
    return build_manager([feature]).hook


def test_hook_complete_arguments_lets_a_synchronous_torch_dist_save_pass():
    assert hook().complete_arguments(arguments=SAVES) == []


def test_a_run_that_saves_nothing_is_not_looked_at():
    arguments = {"save": None, "async_save": True, "ckpt_format": "torch"}
    assert hook().complete_arguments(arguments=arguments) == []


def test_an_asynchronous_save_is_refused_by_name_with_its_strategy():
    arguments = SAVES | {"async_save": True, "async_strategy": "nvrx"}
    with pytest.raises(PeriodicError, match="Drop --async-save") as caught:
        hook().complete_arguments(arguments=arguments)
    assert "nvrx" in str(caught.value)


def test_an_asynchronous_save_is_left_alone_where_the_user_says_so():
    arguments = SAVES | {"async_save": True}
    assert hook(allow_async_save=True).complete_arguments(arguments=arguments) == []


@pytest.mark.parametrize("name", ["torch", "torch_dcp", "fsdp_dtensor", "zarr"])
def test_another_format_is_refused_by_name(name):
    with pytest.raises(PeriodicError, match="Give --ckpt-format torch_dist") as caught:
        hook().complete_arguments(arguments=SAVES | {"ckpt_format": name})
    assert name in str(caught.value)


def test_another_trainer_is_refused_by_name():
    with pytest.raises(PeriodicError, match="Give --train-backend megatron"):
        hook().complete_arguments(arguments=SAVES | {"train_backend": "fsdp"})


def test_hook_checkpoint_waves_keeps_to_the_bound_that_is_set():
    entries = [CheckpointEntry(str(n), MEBIBYTE, MEBIBYTE) for n in range(5)]
    plan = hook(staging_bytes=2 * MEBIBYTE).checkpoint_waves(entries=entries, num_writers=1)
    assert [len(wave[0]) for wave in plan.waves] == [2, 2, 1]


def test_a_tensor_beyond_the_bound_is_said_once_by_name_and_size(caplog):
    entries = [CheckpointEntry("embedding", 3 * MEBIBYTE, 3 * MEBIBYTE)]
    ours = hook(staging_bytes=MEBIBYTE)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours.checkpoint_waves(entries=entries, num_writers=1)
    (record,) = caplog.records
    assert "embedding takes 3145728 bytes" in record.getMessage()
