"""What the rollout manager binds: a rollout, its requests and its responses."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
_GENERATE = "miles.rollout.generate_utils.generate_endpoint_utils"

BINDINGS = (
    Binding(
        name="rollout/scope",
        upstream="miles",
        target="miles.rollout.sglang_rollout:generate_and_rm",
        adapter=f"{_ADAPTERS}.rollout_scope:enter",
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
        target=f"{_GENERATE}:get_rollout_topk_from_response",
        adapter=f"{_ADAPTERS}.routed_experts:decode",
        relies_on=(
            f"{_GENERATE}:compute_request_payload",
            f"{_GENERATE}:update_sample_from_response",
        ),
    ),
    Binding(
        name="rollout/routed-experts-of-tokens",
        upstream="miles",
        target=f"{_GENERATE}:get_routed_experts_from_response",
        adapter=f"{_ADAPTERS}.routed_experts:decode",
        relies_on=(
            f"{_GENERATE}:compute_request_payload",
            f"{_GENERATE}:update_sample_from_response",
        ),
    ),
    Binding(
        name="rollout/truncate",
        upstream="miles",
        target="miles.rollout.generate_utils.openai_endpoint_utils:_truncate_sample_output",
        adapter=f"{_ADAPTERS}.per_token:truncate",
    ),
)
