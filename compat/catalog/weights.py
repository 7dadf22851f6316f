"""What trainers and engines bind so that a weight update leaves the servers' KV alone."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
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
        only_when="trainer and servers share GPUs",
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
)
