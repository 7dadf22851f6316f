"""What a user can set for fast-resharding in a run, and the sizes of every conversion."""

from __future__ import annotations

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "fast-resharding"

#: Largest stretch of a target tensor that a worker holds at once.
UNIT_BYTES = 64 << 20
#: What a worker is handed at once; also what a killed run may have to do again per worker.
TASK_BYTES = 256 << 20
#: Between source file and a target that cannot be read in place.
SCRATCH_BYTES = 8 << 20
#: A shard's size as Hugging Face's own tools write it.
SHARD_BYTES = 5_000_000_000


class FastReshardingSettings(FeatureSettings):
    """Table `[fast-resharding]`."""

    workers: int = Field(default=0, ge=0)
    """Ray actors of the run that convert, spread over its nodes; 0 for threads of one rank. They
    take no CPUs from what Ray hands out: trainers wait meanwhile."""

    verify: bool = True
    """Read both sides of each conversion again and compare checksums."""

    stop_on_failure: bool = True
    """End the run where a checkpoint cannot be converted. Without it the error is logged, as Miles
    does; the checkpoint itself is there in both cases, and `miles reshard` converts it later."""
