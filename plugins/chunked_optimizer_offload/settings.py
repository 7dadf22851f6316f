"""What a user can set for chunked-optimizer-offload."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field, model_validator

from miles_periodic.hooks.feature import FeatureSettings
from miles_periodic.plugins.chunked_optimizer_offload.slots import FP32_BYTES, Costs, fit_slots

SLUG = "chunked-optimizer-offload"
#: Bytes per element that the dearest arithmetic of a trainer allocates while it steps: that of
#: torch's Adam with a weight decay that goes through the gradient.
MAX_PASSING_BYTES = 3 * FP32_BYTES
_MOMENT_BYTES = {"float32": FP32_BYTES, "bfloat16": 2}


class ChunkedOptimizerOffloadSettings(FeatureSettings):
    """Table `[chunked-optimizer-offload]`."""

    workspace_bytes: ByteSize = Field(default=ByteSize(1 << 30))
    """Device memory, in bytes or as text such as `1GiB`, that a step may use for masters, moments
    and the step's temporaries, on each rank and for each optimizer (a model with experts has
    two)."""

    chunk_bytes: ByteSize | None = None
    """Masters and moments, in bytes, that are moved at a time; three chunks and a step's
    temporaries must fit into the workspace. Left out, the workspace holds four."""

    moment_dtype: Literal["float32", "bfloat16"] = "float32"
    """How the two moments are kept in host memory. bfloat16 moves 16 bytes a parameter instead of
    24, and rounds both moments after every step: no longer equal to the native optimizer."""

    @model_validator(mode="after")
    def _slots_fit(self) -> ChunkedOptimizerOffloadSettings:
        moment = _MOMENT_BYTES[self.moment_dtype]
        costs = Costs.of((FP32_BYTES, moment, moment), MAX_PASSING_BYTES)
        fit_slots(self.workspace_bytes, self.chunk_bytes, costs)
        return self
