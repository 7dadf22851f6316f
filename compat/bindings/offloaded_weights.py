"""Which weights an offloaded optimizer of a DistributedOptimizer writes, and what it cannot have.

A command line is refused before anything starts (the feature's `complete_arguments`); this is for
those who build Megatron's optimizer without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from miles_periodic.compat.bindings.quantised_weights import least_bytes
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import OffloadedOptimizer

#: Of an element of a weight before it is quantised.
WEIGHT_BYTES = 2
SLUG = "chunked-optimizer-offload"
#: Field of a configuration, and what of it cannot be had.
_REFUSED = (
    ("config", "use_precision_aware_optimizer", "the masters are inside its FusedAdam"),
    ("config", "optimizer_cpu_offload", "it moves the same state to a place of its own"),
    ("config", "reuse_grad_buf_for_mxfp8_param_ag", "masters go through the gradient buffer"),
    ("config", "optimizer_cuda_graph", "a CUDA graph cannot hold a step in chunks"),
    ("config", "offload_optimizer_states", "it moves the same state to a place of its own"),
    ("ddp_config", "use_megatron_fsdp", "Megatron-FSDP holds masters of its own"),
    ("ddp_config", "fp4_param_gather", "FP4 weights are quantised by a call of their own"),
)
#: Recipes whose weights Megatron's `quantize_param_shard` makes in its distributed optimizer.
RECIPES = ("delayed", "tensorwise", "blockwise")


def refuse(optimizer: Any) -> None:
    """Raise PeriodicError naming the first field of its configuration that cannot be had."""
    for holder, name, why in _REFUSED:
        if getattr(getattr(optimizer, holder), name, False):
            raise _refusal(f"{holder}.{name}", why, "False", "True")
    if not any(map(is_quantised, _flat(optimizer.shard_float16_groups))):
        return
    if not getattr(optimizer.ddp_config, "fp8_param_gather", False):
        why = "these weights are quantised, and nothing says that masters become quantised ones"
        raise _refusal("ddp_config.fp8_param_gather", why, "True", "False")
    if (recipe := getattr(optimizer.config, "fp8_recipe", None)) not in (None, *RECIPES):
        why = "its weights are not made by the call that FP8's other recipes share"
        raise _refusal("config.fp8_recipe", why, " or ".join(RECIPES), str(recipe))


def is_quantised(shard: Any) -> bool:
    """Whether a shard of a weight is one of quantised data: none, or a tensor of another class."""
    import torch

    return type(shard) is not torch.Tensor


def make_room(offloaded: OffloadedOptimizer, masters: Iterable[Any]) -> None:
    """Have the workspace hold the largest of these masters when it is rounded."""
    needed = [least_bytes(master.numel(), WEIGHT_BYTES) for master in masters]
    try:
        with offloaded.lent_workspace(max(needed, default=0)):
            pass
    except ValueError as error:
        raise PeriodicError(
            f"Masters of quantised weights cannot be rounded: {str(error).rstrip('.')}.",
            feature=SLUG,
            target=f"{SLUG}.workspace_bytes",
            remedy=f"Set it, shard weights over more ranks, or take the feature out with -{SLUG}.",
        ) from error


def masters_of_weights(optimizer: Any) -> dict[Any, Any]:
    """Each parameter of the optimizer inside to the flat shard of a weight that is made from it.

    None stands for a weight that is quantised as a whole. Shards of FP32 weights, which are their
    own masters, become parameters apart: leaves over the same memory with the same attributes, so
    that the weight stays when its master moves.
    """
    weights = {
        master: None if is_quantised(shard) else shard
        for masters, shards in zip(
            optimizer.shard_fp32_from_float16_groups, optimizer.shard_float16_groups, strict=True
        )
        for master, shard in zip(masters, shards, strict=True)
    }
    leaves = {}
    for shards in optimizer.shard_fp32_groups:
        for number, shard in enumerate(shards):
            leaf = shard.detach()
            vars(leaf).update(vars(shard))
            leaves[shard], weights[leaf] = leaf, shard.detach()
            shards[number] = leaf
    for group in optimizer.optimizer.param_groups:
        group["params"][:] = [leaves.get(param, param) for param in group["params"]]
    return weights


def _flat(groups: Sequence[Sequence[Any]]) -> Iterator[Any]:
    return (param for group in groups for param in group)


def _refusal(target: str, why: str, expected: str, found: str) -> PeriodicError:
    return PeriodicError(
        f"Optimizer state cannot be offloaded in chunks: {why}.",
        feature=SLUG,
        target=f"DistributedOptimizer, {target}",
        expected=expected,
        found=found,
        remedy=f"Change it, or take the feature out with -{SLUG}.",
    )
