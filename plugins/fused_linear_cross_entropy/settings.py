"""What a user can set for fused-linear-cross-entropy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "fused-linear-cross-entropy"
#: The largest block of logits: 256 MiB of FP32.
CHUNK_TOKENS = 4096
CHUNK_VOCABULARY = 16384


class FusedLinearCrossEntropySettings(FeatureSettings):
    """Table `[fused-linear-cross-entropy]`."""

    kernel: Literal["torch", "liger"] = "torch"
    """What computes log-probabilities. `torch` is exact, needs no package and runs everywhere;
    `liger` (liger-kernel 0.8.5 or later, on Hopper with nvidia-cutlass-dsl) needs CUDA, and each
    answer of its is compared with torch's on a few tokens."""

    chunk_tokens: int = Field(default=CHUNK_TOKENS, ge=1)
    """Tokens in the largest block of logits that exists at once."""

    chunk_vocabulary: int = Field(default=CHUNK_VOCABULARY, ge=1)
    """Entries of the vocabulary in that block; `liger` takes them all at once."""
