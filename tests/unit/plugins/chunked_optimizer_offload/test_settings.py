from itertools import product

import pytest
import torch
from pydantic import ValidationError

from miles_periodic.compat.cpu.fused_adam import FusedAdam
from miles_periodic.plugins.chunked_optimizer_offload import ChunkedOptimizerOffloadSettings
from miles_periodic.plugins.chunked_optimizer_offload.take_over import in_place_of

MIB = 1 << 20


def least_workspace(**settings):
    """The bytes that the refusal of a small workspace names."""
    with pytest.raises(ValidationError, match="set it to at least") as refused:
        ChunkedOptimizerOffloadSettings(**settings)
    return int(str(refused.value).partition("at least ")[2].partition(",")[0])


def test_three_chunks_without_room_for_their_step_are_refused_with_the_least_workspace():
    least = least_workspace(workspace_bytes="3MiB", chunk_bytes="1MiB")
    assert 3 * MIB < least < 5 * MIB
    ChunkedOptimizerOffloadSettings(workspace_bytes=least, chunk_bytes="1MiB")
    assert least_workspace(workspace_bytes=least - 1, chunk_bytes="1MiB") == least


@pytest.mark.parametrize(
    ("kind", "moment_dtype"),
    list(product([torch.optim.Adam, torch.optim.AdamW, FusedAdam], ["float32", "bfloat16"])),
)
def test_every_optimizer_of_a_trainer_steps_in_the_least_workspace(kind, moment_dtype):
    limits = {"chunk_bytes": 6 << 10, "moment_dtype": moment_dtype}
    least = least_workspace(workspace_bytes=1, **limits)
    params = [torch.ones(5000)]
    settings = ChunkedOptimizerOffloadSettings(workspace_bytes=least, **limits)
    chunked = in_place_of(kind(params), settings)
    params[0].grad = torch.ones(5000)
    chunked.step()
    assert 0 < chunked.last_step.workspace_bytes <= least


def test_a_chunk_that_holds_no_vector_of_elements_is_refused():
    with pytest.raises(ValidationError, match="chunk_bytes=1 is too small"):
        ChunkedOptimizerOffloadSettings(chunk_bytes=1)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16", "fp32"])
def test_moments_of_other_dtypes_are_refused(dtype):
    with pytest.raises(ValidationError, match="moment_dtype"):
        ChunkedOptimizerOffloadSettings(moment_dtype=dtype)
