"""Hook specs that decide what the trainer's ranks are handed."""

from __future__ import annotations

from typing import Any

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import DataParallelSplit, TrainBatch


@hookspec(firstresult=True)
def split_train_batch(batch: TrainBatch) -> DataParallelSplit | None:
    """Which rank trains on which samples of `batch`, in which order.

    Called in the rollout manager once per rollout step. `None` keeps Miles's own split. First
    result wins; two features that answer are refused when the manager is built.
    """


@hookspec(firstresult=True)
def routed_experts_for_training(rows: Any) -> Any | None:
    """One sample's routes in the dtype that the trainer computes with.

    Called in each train rank once per sample. `rows` is an integer array (rows, num_layers,
    top_k) as the rollout kept it. Returns an int32 array of the same shape, or `None` to leave
    it as it is. First result wins; two features that answer are refused when the manager is built.
    """
