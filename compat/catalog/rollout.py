"""What the rollout manager binds: a rollout, its requests, its responses, and its step's last word.

Bindings around one target are applied in this order: the last one is outermost. Whoever reads what
all features sent (`rollout/traffic`) stands behind whoever adds it (`rollout/request`).
"""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
_LEGACY = "miles.rollout.sglang_rollout:generate_and_rm"
_REFACTORED = "miles.rollout.inference_rollout.inference_rollout_common:generate_and_rm"
_GENERATE = "miles.rollout.generate_utils.generate_endpoint_utils"

BINDINGS = (
    Binding(
        name="rollout/scope",
        upstream="miles",
        target=_LEGACY,
        adapter=f"{_ADAPTERS}.rollout_scope:enter",
    ),
    Binding(
        name="rollout/refactored-scope",
        upstream="miles",
        target=_REFACTORED,
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
    Binding(
        name="rollout/start",
        upstream="miles",
        target=_LEGACY,
        adapter=f"{_ADAPTERS}.rollout_flight:keep_start",
    ),
    Binding(
        name="rollout/refactored-start",
        upstream="miles",
        target=_REFACTORED,
        adapter=f"{_ADAPTERS}.rollout_flight:keep_start",
    ),
    Binding(
        name="rollout/traffic",
        upstream="miles",
        target="miles.utils.http_utils:post",
        adapter=f"{_ADAPTERS}.rollout_traffic:watch",
        processes=("rollout-manager",),
    ),
    Binding(
        name="rollout/logged-step",
        upstream="miles",
        target="miles.ray.rollout:_log_rollout_data",
        adapter=f"{_ADAPTERS}.rollout_step:log",
        processes=("rollout-manager",),
    ),
    Binding(
        name="rollout/main-logged-step",
        upstream="miles",
        target="miles.ray.rollout.metrics:log_rollout_data",
        adapter=f"{_ADAPTERS}.rollout_step:log",
        processes=("rollout-manager",),
    ),
    Binding(
        name="rollout/cancellable",
        upstream="miles",
        target=_LEGACY,
        adapter=f"{_ADAPTERS}.cancellation:make_cancellable",
    ),
    Binding(
        name="rollout/refactored-cancellable",
        upstream="miles",
        target=_REFACTORED,
        adapter=f"{_ADAPTERS}.cancellation:make_cancellable",
        relies_on=("miles.rollout.inference_rollout.inference_rollout_train:get_worker_urls",),
    ),
    Binding(
        name="rollout/group",
        upstream="miles",
        target="miles.rollout.filter_hub.base_types:call_dynamic_filter",
        adapter=f"{_ADAPTERS}.cancellation:drop_group",
        relies_on=("miles.rollout.filter_hub.base_types:DynamicFilterOutput",),
    ),
)
