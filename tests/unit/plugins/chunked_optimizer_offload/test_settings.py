import pytest
from pydantic import ValidationError

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedOptimizerOffloadSettings


def test_three_chunks_must_fit_into_the_workspace():
    ChunkedOptimizerOffloadSettings(workspace_mib=30, chunk_mib=10)
    with pytest.raises(ValidationError, match="at least 3 times chunk_mib"):
        ChunkedOptimizerOffloadSettings(workspace_mib=29, chunk_mib=10)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16", "fp32"])
def test_moments_of_other_dtypes_are_refused(dtype):
    with pytest.raises(ValidationError, match="moment_dtype"):
        ChunkedOptimizerOffloadSettings(moment_dtype=dtype)
