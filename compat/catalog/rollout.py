"""What the rollout manager binds: a rollout, its requests and its responses."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS = (
    Binding(
        name="rollout/scope",
        upstream="miles",
        target="miles.rollout.sglang_rollout:generate_and_rm",
        adapter=f"{_ADAPTERS}.rollout_scope:enter",
        processes=("rollout-manager",),
    ),
    Binding(
        name="rollout/refactored-scope",
        upstream="miles",
        target="miles.rollout.inference_rollout.inference_rollout_common:generate_and_rm",
        adapter=f"{_ADAPTERS}.rollout_scope:enter",
    ),
    # Before rollout/request, so that it sees the fields that features add.
    Binding(
        name="rollout/pairs",
        upstream="miles",
        target="miles.utils.http_utils:post",
        adapter=f"{_ADAPTERS}.rollout_pairs:send_to_both",
        relies_on=("miles.backends.sglang_utils.sglang_config:SglangConfig",),
    ),
    Binding(
        name="rollout/request",
        upstream="miles",
        target="miles.utils.http_utils:post",
        adapter=f"{_ADAPTERS}.rollout_request:add_fields",
        processes=("rollout-manager",),
    ),
    Binding(
        name="rollout/routed-experts",
        upstream="miles",
        target=(
            "miles.rollout.generate_utils.generate_endpoint_utils:get_rollout_topk_from_response"
        ),
        adapter=f"{_ADAPTERS}.routed_experts:decode",
        relies_on=(
            "miles.rollout.generate_utils.generate_endpoint_utils:compute_request_payload",
            "miles.rollout.generate_utils.generate_endpoint_utils:update_sample_from_response",
        ),
    ),
)
