"""Hook specs that decide what the trainer's ranks are handed, and what steps there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import (
    DataParallelSplit,
    OffloadedOptimizer,
    OutputHead,
    RankShare,
    RouteShape,
    TrainBatch,
)


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


@hookspec(firstresult=True)
def offloaded_optimizer(optimizer: Any) -> OffloadedOptimizer | None:
    """What steps in the place of a trainer's own optimizer, whose state it takes over.

    Called in each train rank once for each distributed optimizer (a model with experts has two),
    right after Megatron has built it. `optimizer` is the torch optimizer inside, over this rank's
    FP32 masters, not stepped yet; it is not used any more where there is an answer. `None` leaves
    it in place. First result wins; two features that answer are refused when the manager is built.
    """


@hookspec(firstresult=True)
def token_log_probs(
    head: OutputHead,
    targets: Any,
    temperature: float,
    any_target: bool,
    with_entropy: bool,
) -> tuple[Any, Any]:
    """The log-probabilities of given tokens, from what their logits would be made of.

    Called in each train rank that holds the output layer, for each micro-batch, in place of the
    logits; `head` is what they would be made of, T tokens of it; `targets` (T,) int64, tokens of
    the whole vocabulary; logits are divided by `temperature`. With `any_target` a target may also
    lie outside of the vocabulary (a position without a label) and is taken as Megatron takes it: as
    if its logit were a constant, as large as the token's largest one. Without, it is an error.
    Returns log-probabilities (T,) FP32, never above 0, and where `with_entropy` the entropies (T,)
    in nats, else `None`; both with gradients of the head's tensors. There is no default: somebody
    must answer. First result wins; two features that answer are refused when the
    manager is built.
    """
