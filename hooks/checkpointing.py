"""Hook specs that decide how a rank writes its share of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import CheckpointEntry, CheckpointWaves


@hookspec(firstresult=True)
def checkpoint_waves(
    entries: Sequence[CheckpointEntry], num_writers: int
) -> CheckpointWaves | None:
    """Which entries of a synchronous save are staged and written together, one wave after another.

    Called in each train rank once per save, before anything is copied to the host. `entries` is
    what this rank writes, in Megatron's order; `num_writers` is how many files Megatron would
    write at once. Every entry must stand in exactly one file of one wave. `None` writes
    Megatron's files as one wave. First result wins; two features that answer are refused when the
    manager is built.
    """
