"""The slug of fast-resharding, and the sizes that decide its memory and its files."""

from __future__ import annotations

SLUG = "fast-resharding"

#: Largest stretch of a target tensor that a worker holds at once.
UNIT_BYTES = 64 << 20
#: What a worker is handed at once; also what a killed run may have to do again per worker.
TASK_BYTES = 256 << 20
#: Between source file and a target that cannot be read in place.
SCRATCH_BYTES = 8 << 20
#: A shard's size as Hugging Face's own tools write it.
SHARD_BYTES = 5_000_000_000
