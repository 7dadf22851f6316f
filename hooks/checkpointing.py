"""Hook specs on checkpoints: how a rank writes its share, and what is made of a whole one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


@hookspec(firstresult=True)
def export_checkpoint(checkpoint: str, target: str, arguments: Mapping[str, Any]) -> bool | None:
    """Make a model in Hugging Face's form of a checkpoint that the run has just saved.

    Called in the trainers' first rank, with `--save-hf`, after every rank has written its share of
    `checkpoint`, a folder; all other ranks wait. `target` is the folder to make; one of that name
    may be there, of a run that saved this rollout before. `arguments` are the run's, by Miles's
    names. `True` says that `target` is whole, `False` that it could not be made and the run goes
    on without it; `PeriodicError` ends the run in every rank. `None` leaves it to Miles, which
    gathers the model from the ranks. First result wins; two features that answer are refused when
    the manager is built.
    """
