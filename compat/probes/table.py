"""Feature slug to upstream to probe; an upstream that is missing here is not touched."""

from __future__ import annotations

from collections.abc import Callable

from miles_periodic.compat.probes import (
    chunked_checkpoint_staging,
    chunked_optimizer_offload,
    cost_aware_packing,
    decode_radix_cache,
    delta_router_replay,
    fast_resharding,
    fused_linear_cross_entropy,
    kv_preservation,
    request_routing,
)
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import Decision

Probe = Callable[[Tree], Decision]

PROBES: dict[str, dict[str, Probe]] = {
    delta_router_replay.SLUG: {
        "sglang": delta_router_replay.sglang,
        "megatron": delta_router_replay.megatron,
        "miles": delta_router_replay.miles,
    },
    kv_preservation.SLUG: {
        "sglang": kv_preservation.sglang,
        "miles": kv_preservation.miles,
    },
    decode_radix_cache.SLUG: {
        "sglang": decode_radix_cache.sglang,
        "miles": decode_radix_cache.miles,
    },
    request_routing.SLUG: {
        "sglang": request_routing.sglang,
        "miles": request_routing.miles,
    },
    cost_aware_packing.SLUG: {
        "megatron": cost_aware_packing.megatron,
        "miles": cost_aware_packing.miles,
    },
    chunked_optimizer_offload.SLUG: {
        "megatron": chunked_optimizer_offload.megatron,
        "miles": chunked_optimizer_offload.miles,
    },
    fused_linear_cross_entropy.SLUG: {
        "megatron": fused_linear_cross_entropy.megatron,
        "miles": fused_linear_cross_entropy.miles,
    },
    chunked_checkpoint_staging.SLUG: {
        "megatron": chunked_checkpoint_staging.megatron,
        "miles": chunked_checkpoint_staging.miles,
    },
    fast_resharding.SLUG: {
        "miles": fast_resharding.miles,
    },
}
