"""What a user can set for chunked-optimizer-offload."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "chunked-optimizer-offload"
MIB = 1 << 20
#: Fewer could not load one chunk and drain another while a third is stepped.
MIN_SLOTS = 3
#: One more than are needed, so that a late drain does not hold up a load.
MAX_SLOTS = 4


class ChunkedOptimizerOffloadSettings(FeatureSettings):
    """Table `[chunked-optimizer-offload]`."""

    workspace_mib: int = Field(default=1024, ge=1)
    """MiB of device memory that a step may use for masters, moments and the step's temporaries, on
    each rank and for each optimizer (a model with experts has two)."""

    chunk_mib: int | None = Field(default=None, ge=1)
    """MiB of masters and moments that are moved at a time; three chunks and a step's temporaries
    must fit into the workspace. Left out, the workspace holds four."""

    moment_dtype: Literal["float32", "bfloat16"] = "float32"
    """How the two moments are kept in host memory. bfloat16 moves 16 bytes a parameter instead of
    24, and rounds both moments after every step: no longer equal to the native optimizer."""

    @model_validator(mode="after")
    def _slots_fit(self) -> ChunkedOptimizerOffloadSettings:
        if self.chunk_mib is not None and MIN_SLOTS * self.chunk_mib > self.workspace_mib:
            raise ValueError(f"workspace_mib must be at least {MIN_SLOTS} times chunk_mib")
        return self
