"""Hook specs that decide what the trainer's ranks are handed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import DataParallelSplit, RankShare, RouteShape, TrainBatch


@hookspec(firstresult=True)
def split_train_batch(batch: TrainBatch) -> DataParallelSplit | None:
    """Which rank trains on which samples of `batch`, in which order.

    Called where the split is made, once per rollout step: in the rollout manager, or with
    Megatron's own packing scheduler in each of its ranks, which must all answer alike. `None`
    keeps the upstream's own split. First result wins; two features that answer are refused when
    the manager is built.
    """


@hookspec(firstresult=True)
def routed_experts_for_training(
    routes: Sequence[Any], share: RankShare, shape: RouteShape
) -> Any | None:
    """The routes that one train rank keeps of one micro-batch, in the dtype it keeps them in.

    Called in each train rank before a step's first forward pass, once per micro-batch. `routes`
    are the samples of the rank's shard, integer arrays (rows, num_layers, top_k) as the rollout
    kept them, not to be written to; `share` says which layers and which rows this rank computes;
    `shape` is that of one row. Returns an integer array (len(share.layers), len(share.rows),
    top_k), whatever in positions that are padding, or `None` to leave all of it to Miles. First
    result wins; two features that answer are refused when the manager is built.
    """
