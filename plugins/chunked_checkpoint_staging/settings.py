"""What a user can set for chunked-checkpoint-staging."""

from __future__ import annotations

from pydantic import ByteSize, Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "chunked-checkpoint-staging"


class ChunkedCheckpointStagingSettings(FeatureSettings):
    """Table `[chunked-checkpoint-staging]`."""

    staging_bytes: ByteSize = Field(default=ByteSize(2 << 30), ge=1 << 20)
    """Host memory, in bytes or as text such as `2GiB`, that one rank may hold copies in while it
    saves. A tensor that is larger by itself is staged alone, and named. More waves mean more and
    smaller files."""

    allow_async_save: bool = False
    """Let a run use --async-save, whose saves then stay as Megatron makes them: training goes on
    while they are written, so each rank's whole shard is copied to the host first."""
