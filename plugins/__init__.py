"""The features, one folder each; nothing here knows an upstream.

delta_router_replay         a turn transfers only the routes of rows that the client does not hold
kv_preservation             weight updates in place, and a KV salt per weight version
decode_radix_cache          decode servers that keep prefixes; only a suffix crosses from prefill
request_routing             every turn of a rollout to the server that holds its prefix
cost_aware_packing          data-parallel ranks that wait for each other as little as can be
chunked_optimizer_offload   Adam whose masters and moments stream from host memory
fused_linear_cross_entropy  token log-probabilities without a tensor of tokens x vocabulary
chunked_checkpoint_staging  saves that hold a bounded part of a shard in host memory
fast_resharding             Megatron's checkpoints as safetensors of Hugging Face, at disk speed
pbox                        sandboxes on the job's own nodes, gone with the job
"""

from __future__ import annotations

from miles_periodic.hooks.feature import Feature


def features() -> tuple[type[Feature], ...]:
    """The entry point `periodic`: every feature of this package, in the order of its wrappers."""
    from miles_periodic.plugins.chunked_checkpoint_staging.feature import (
        ChunkedCheckpointStaging,
    )
    from miles_periodic.plugins.chunked_optimizer_offload.feature import ChunkedOptimizerOffload
    from miles_periodic.plugins.cost_aware_packing.feature import CostAwarePacking
    from miles_periodic.plugins.decode_radix_cache.feature import DecodeRadixCache
    from miles_periodic.plugins.delta_router_replay.feature import DeltaRouterReplay
    from miles_periodic.plugins.fast_resharding.feature import FastResharding
    from miles_periodic.plugins.fused_linear_cross_entropy.feature import FusedLinearCrossEntropy
    from miles_periodic.plugins.kv_preservation.feature import KVPreservation
    from miles_periodic.plugins.request_routing.feature import RequestRouting

    return (
        DeltaRouterReplay,
        KVPreservation,
        DecodeRadixCache,
        RequestRouting,
        CostAwarePacking,
        ChunkedOptimizerOffload,
        FusedLinearCrossEntropy,
        ChunkedCheckpointStaging,
        FastResharding,
    )
