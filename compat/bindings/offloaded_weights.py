"""Which weights an offloaded optimizer of a DistributedOptimizer writes, and what it cannot have.

A command line is refused before anything starts (the feature's `complete_arguments`); this is for
those who build Megatron's optimizer without one.
"""

from __future__ import annotations

from typing import Any

from miles_periodic.hooks.errors import PeriodicError

SLUG = "chunked-optimizer-offload"
#: Field of a configuration, and what of it cannot be had.
_REFUSED = (
    ("config", "use_precision_aware_optimizer", "the masters are inside its FusedAdam"),
    ("config", "optimizer_cpu_offload", "it moves the same state to a place of its own"),
    ("config", "reuse_grad_buf_for_mxfp8_param_ag", "masters go through the gradient buffer"),
    ("config", "optimizer_cuda_graph", "a CUDA graph cannot hold a step in chunks"),
    ("config", "offload_optimizer_states", "it moves the same state to a place of its own"),
    ("ddp_config", "use_megatron_fsdp", "Megatron-FSDP holds masters of its own"),
    ("ddp_config", "fp8_param_gather", "quantised weights are made from all masters at once"),
    ("ddp_config", "fp4_param_gather", "quantised weights are made from all masters at once"),
)


def refuse(optimizer: Any) -> None:
    """Raise PeriodicError naming the first field of its configuration that cannot be had."""
    for holder, name, why in _REFUSED:
        if getattr(getattr(optimizer, holder), name, False):
            raise _refusal(f"{holder}.{name}", why, "False", "True")
    quantised = [shard for group in optimizer.shard_float16_groups for shard in group]
    if any(shard is None for shard in quantised):
        why = "quantised weights are made from all masters at once"
        raise _refusal("shard_float16_groups", why, "weights of 16 bits", "quantised ones")


def masters_of_weights(optimizer: Any) -> dict[Any, Any]:
    """Each parameter of the optimizer inside to the flat shard of a weight that is made from it.

    Shards of FP32 weights, which are their own masters, become parameters apart: leaves over the
    same memory with the same attributes, so that the weight stays when its master moves.
    """
    weights = {
        master: shard
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


def _refusal(target: str, why: str, expected: str, found: str) -> PeriodicError:
    return PeriodicError(
        f"Optimizer state cannot be offloaded in chunks: {why}.",
        feature=SLUG,
        target=f"DistributedOptimizer, {target}",
        expected=expected,
        found=found,
        remedy=f"Change it, or take the feature out with -{SLUG}.",
    )
