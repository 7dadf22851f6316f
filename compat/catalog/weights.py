"""What keeps KV over a weight update, and what ends rollouts that are too old for the weights."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
_LEGACY = "miles.rollout.sglang_rollout:generate_and_rm"
_REFACTORED = "miles.rollout.inference_rollout.inference_rollout_common:generate_and_rm"
_ENGINE = "miles.backends.sglang_utils.sglang_engine:SGLangEngine"

BINDINGS = (
    Binding(
        name="weights/colocated",
        upstream="miles",
        target=(
            "miles.backends.megatron_utils.update_weight.update_weight_from_tensor:"
            "UpdateWeightFromTensor.update_weights"
        ),
        adapter=f"{_ADAPTERS}.weight_update:keep_kv",
    ),
    Binding(
        name="weights/fsdp",
        upstream="miles",
        target="miles.backends.fsdp_utils.update_weight_utils:UpdateWeight.update_weights",
        adapter=f"{_ADAPTERS}.weight_update:keep_kv",
        relies_on=(
            "miles.backends.fsdp_utils.update_weight_utils:"
            "UpdateWeightFromTensor.update_bucket_weights",
        ),
    ),
    Binding(
        name="weights/experimental-fsdp",
        upstream="miles",
        target=(
            "miles.backends.experimental.fsdp_utils.update_weight_utils:UpdateWeight.update_weights"
        ),
        adapter=f"{_ADAPTERS}.weight_update:keep_kv",
        relies_on=(
            "miles.backends.experimental.fsdp_utils.update_weight_utils:"
            "UpdateWeightFromTensor.update_bucket_weights",
        ),
    ),
    Binding(
        name="weights/request",
        upstream="miles",
        target=f"{_ENGINE}._make_request",
        adapter=f"{_ADAPTERS}.weight_update:ask_without_flush",
        relies_on=(f"{_ENGINE}.update_weights_from_disk",),
    ),
    Binding(
        name="weights/pause",
        upstream="miles",
        target=f"{_ENGINE}.pause_generation",
        adapter=f"{_ADAPTERS}.weight_update:pause_until_quiet",
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
