"""Which bindings exist, and which of them each feature needs on which upstream."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS: dict[str, Binding] = {
    binding.name: binding
    for binding in (
        Binding(
            name="launch/arguments",
            upstream="miles",
            target="miles.utils.arguments:parse_args",
            adapter=f"{_ADAPTERS}.arguments:complete",
            processes=("driver",),
        ),
        Binding(
            name="launch/muster",
            upstream="miles",
            target="miles.ray.placement_group:create_training_models",
            adapter=f"{_ADAPTERS}.muster:call",
            processes=("driver",),
        ),
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
                "miles.rollout.generate_utils.generate_endpoint_utils:"
                "get_rollout_topk_from_response"
            ),
            adapter=f"{_ADAPTERS}.routed_experts:decode",
            relies_on=(
                "miles.rollout.generate_utils.generate_endpoint_utils:compute_request_payload",
                "miles.rollout.generate_utils.generate_endpoint_utils:update_sample_from_response",
            ),
        ),
        Binding(
            name="server/carry-start",
            upstream="sglang",
            target=(
                "sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object"
            ),
            adapter=f"{_ADAPTERS}.server_routes:carry",
        ),
        Binding(
            name="server/remember-start",
            upstream="sglang",
            target="sglang.srt.managers.scheduler:Scheduler.handle_generate_request",
            adapter=f"{_ADAPTERS}.server_routes:remember",
        ),
        Binding(
            name="server/collect-from-start",
            upstream="sglang",
            target=(
                "sglang.srt.managers.scheduler_output_processor_mixin:"
                "SchedulerOutputProcessorMixin.maybe_collect_routed_experts"
            ),
            adapter=f"{_ADAPTERS}.server_routes:collect",
            relies_on=(
                "sglang.srt.layers.moe.routed_experts_capturer:"
                "_RoutedExpertsCapturerReal.get_routed_experts",
            ),
        ),
        Binding(
            name="training/routed-experts",
            upstream="miles",
            target="miles.backends.training_utils.data:get_rollout_data",
            adapter=f"{_ADAPTERS}.routed_experts:widen",
            processes=("trainer",),
        ),
        Binding(
            name="training/split",
            upstream="miles",
            target="miles.ray.rollout:RolloutManager._split_train_data_by_dp",
            adapter=f"{_ADAPTERS}.packing:split",
            processes=("driver",),
            relies_on=("miles.utils.ray_utils:Box", "miles.utils.data:process_rollout_data"),
        ),
        Binding(
            name="training/plan",
            upstream="miles",
            target="miles.backends.training_utils.data:get_rollout_data",
            adapter=f"{_ADAPTERS}.packing:receive",
            processes=("trainer",),
        ),
        Binding(
            name="training/micro-batches",
            upstream="miles",
            target="miles.backends.training_utils.data:get_data_iterator",
            adapter=f"{_ADAPTERS}.packing:iterate",
            processes=("trainer",),
            relies_on=("miles.backends.training_utils.data:DataIterator",),
        ),
    )
}

#: Put in wherever some feature injects something on that upstream.
ALWAYS: dict[str, tuple[str, ...]] = {"miles": ("launch/muster",)}

#: Feature slug to upstream to the names of the bindings that an `Inject` there puts in.
FEATURE_BINDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "delta-router-replay": {
        "sglang": (
            "server/carry-start",
            "server/remember-start",
            "server/collect-from-start",
        ),
        "miles": (
            "launch/arguments",
            "rollout/scope",
            "rollout/refactored-scope",
            "rollout/request",
            "rollout/routed-experts",
            "training/routed-experts",
        ),
    },
    "kv-preservation": {
        "miles": (
            "launch/arguments",
            "rollout/scope",
            "rollout/refactored-scope",
            "rollout/request",
        ),
    },
    "cost-aware-packing": {
        "miles": (
            "launch/arguments",
            "training/split",
            "training/plan",
            "training/micro-batches",
        ),
    },
}


_REQUEST = ("rollout/scope", "rollout/refactored-scope", "rollout/request")

#: Hook to the names of the bindings through which Miles calls it: what a feature of somebody
#: else's plugin, for which there is no probe here, needs.
HOOK_BINDINGS: dict[str, tuple[str, ...]] = {
    "complete_arguments": ("launch/arguments",),
    "server_proofs": _REQUEST,
    "generate_request_fields": _REQUEST,
    "wants_weight_version": _REQUEST,
    "routed_experts_of_response": (
        "rollout/scope",
        "rollout/refactored-scope",
        "rollout/routed-experts",
    ),
    "routed_experts_for_training": ("training/routed-experts",),
    "split_train_batch": ("training/split", "training/plan", "training/micro-batches"),
}


def bindings_for(slug: str, upstream: str) -> tuple[Binding, ...]:
    """The bindings that a feature needs on an upstream; empty where it needs none."""
    names = FEATURE_BINDINGS.get(slug, {}).get(upstream, ())
    return tuple(BINDINGS[name] for name in (*names, *(ALWAYS.get(upstream, ()) if names else ())))


def binding_names(slug: str, upstream: str) -> tuple[str, ...]:
    """The names of the bindings that a feature needs on an upstream."""
    return tuple(binding.name for binding in bindings_for(slug, upstream))


def targets_of(upstream: str) -> tuple[str, ...]:
    """Every target on an upstream whose shape some binding depends on, sorted."""
    bindings = [b for b in BINDINGS.values() if b.upstream == upstream]
    return tuple(sorted({target for binding in bindings for target in binding.targets}))
