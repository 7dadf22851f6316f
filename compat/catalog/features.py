"""Which bindings a feature, a setting of it, or a hook needs on which upstream.

A need is the name of one binding, or a tuple of alternatives: the same decision, taken at another
symbol in another tree. Of alternatives the first whose target the tree has is put in.
"""

from __future__ import annotations

#: As the last of some alternatives: a tree that has none of the others needs none.
NOTHING = ""

#: One name, or alternatives.
Need = str | tuple[str, ...]
Needs = tuple[Need, ...]

#: Put in wherever some feature injects something on that upstream.
ALWAYS: dict[str, Needs] = {"miles": ("launch/muster",)}

# Groups that several features need. Both paths of a rollout are bound where one tree has both.

#: Where a rollout begins and ends, and its requests.
_SCOPE: Needs = ("rollout/scope", "rollout/refactored-scope")
_REQUEST: Needs = (*_SCOPE, "rollout/request")
#: The routes of its responses, until a train rank replays them.
_ROUTES: Needs = (
    *_REQUEST,
    ("rollout/routed-experts", "rollout/routed-experts-of-tokens"),
    ("rollout/truncate", NOTHING),
)
_REPLAY: Needs = (("training/replay-fill", "training/actor-replay-fill"),)
_ENCODED: Needs = (("server/encode-rows", "server/encode-rows-in-mixin"),)
#: A rollout's start and answers, and the step that it is logged in; and its end before its time.
_SEEN: Needs = (
    "rollout/start",
    "rollout/refactored-start",
    "rollout/traffic",
    ("rollout/logged-step", "rollout/main-logged-step"),
)
_CANCELLED: Needs = ("rollout/cancellable", "rollout/refactored-cancellable", "rollout/group")
#: The key or rank of a rollout, the key of a session (Miles main names it itself), the choice.
_ROLLOUT_KEY: Needs = (*_SCOPE, "routing/rollout-key")
_SESSION_KEY: Needs = (("routing/session-key", NOTHING),)
_ROUTER: Needs = ("routing/request", "routing/server")
#: A session's chat requests, and the samples that its records become.
_SESSION_REQUEST: Needs = (
    ("session/chat", "session/begin"),
    ("session/chat-tree", NOTHING),
    ("session/new-rows", "session/proxy"),
    ("session/answer", "session/record"),
)
_SESSION_SAMPLES: Needs = (
    ("session/full-assembly", NOTHING),
    ("session/assemble", "session/assemble-closures"),
    ("session/widen", NOTHING),
)
#: The split of a batch: planned as a whole in the rollout manager, or there and in each trainer.
_SPLIT: Needs = (
    ("training/schedule", "training/split"),
    ("training/unplanned-split", "training/plan"),
    ("training/schedule", "training/micro-batches"),
)
#: A DistributedOptimizer whose masters and moments are elsewhere, its weights and checkpoints.
_OFFLOADED: Needs = (
    "training/offloaded-optimizer",
    "training/write-weights",
    "training/read-weights",
    "training/state-of-weight",
    "training/load-state-of-weight",
    "training/copied-state",
)
#: A model that makes no logits, and the losses that do without; one is nothing without the other.
_OUTPUT: Needs = ("loss/output",)
_LOG_PROBS: Needs = (("loss/log-probs", "loss/main-log-probs"),)
#: A synchronous save, from the strategy that runs it to the function that writes.
_SAVE: Needs = (
    ("checkpoint/save", "checkpoint/save-of-base"),
    "checkpoint/host-tensors",
    "checkpoint/waves",
)
#: The export of a checkpoint that was just saved.
_EXPORT: Needs = (("checkpoint/export", "checkpoint/main-export"),)

#: Feature slug to upstream to what an `Inject` there puts in.
FEATURE_BINDINGS: dict[str, dict[str, Needs]] = {
    "delta-router-replay": {
        "sglang": (
            "server/carry-start",
            "server/remember-start",
            "server/collect-from-start",
            ("server/align-mixed-batches", NOTHING),
            ("server/own-captured-rows", NOTHING),
        ),
        "miles": ("launch/arguments", *_ROUTES, *_REPLAY),
    },
    "kv-preservation": {
        "miles": ("launch/arguments", *_REQUEST, *_SEEN),
    },
    "decode-radix-cache": {
        "miles": ("launch/arguments", "launch/server-arguments", "launch/running-server"),
    },
    "request-routing": {
        "miles": ("launch/arguments",),
    },
    "cost-aware-packing": {
        "miles": ("launch/arguments", *_SPLIT),
    },
    "chunked-optimizer-offload": {
        "megatron": _OFFLOADED,
        "miles": ("launch/arguments",),
    },
    "fused-linear-cross-entropy": {
        "megatron": _OUTPUT,
        "miles": ("launch/arguments", *_LOG_PROBS),
    },
    "chunked-checkpoint-staging": {
        "megatron": _SAVE,
        "miles": ("launch/arguments",),
    },
    "fast-resharding": {
        "miles": ("launch/arguments", *_EXPORT),
    },
}

#: Feature slug to upstream to setting to what that setting needs besides, whether the feature is
#: native there or injected. By the setting's value:
#: on           put in; a tree that lacks a target, or has it in an unknown shape, has no feature
#: off          not put in
#: None         where the setting is a `bool | None`: put in where the tree has known shapes of all
#:              targets; where it has not, the feature goes without, and the plan says so
SETTING_BINDINGS: dict[str, dict[str, dict[str, Needs]]] = {
    "cost-aware-packing": {
        "megatron": {"megatron_scheduler": (("training/packing-scheduler", NOTHING),)}
    },
    "decode-radix-cache": {"sglang": {"refuse_unpaired": ("server/refuse-unpaired",)}},
    "delta-router-replay": {
        "miles": {"join_halves": ("rollout/pairs",)},
        "sglang": {
            "check_capture_buffer": (
                ("server/check-capture-buffer", "server/check-capture-buffer-in-layers"),
            ),
            "keep_rows_on_retraction": (
                ("server/keep-rows", "server/keep-rows-of-batch"),
                ("server/give-back-rows", "server/give-back-rows-in-mixin"),
            ),
            "compact_wire": _ENCODED,
        },
    },
    "kv-preservation": {
        "miles": {
            "pause_in_place": (
                "weights/colocated",
                ("weights/fsdp", "weights/experimental-fsdp", NOTHING),
                "weights/request",
                "weights/pause",
            ),
            "max_off_policy_steps": _CANCELLED,
        },
    },
    "request-routing": {
        "miles": {
            "sticky_keys": (*_ROLLOUT_KEY, *_SESSION_KEY),
            "sticky_ranks": _ROLLOUT_KEY,
            "score_servers": _ROUTER,
        },
    },
}

#: Feature slug to upstream to what it needs besides for rollouts through Miles's session server. A
#: tree in which some of it cannot be bound has the feature, and runs without a session server.
SESSION_BINDINGS: dict[str, dict[str, Needs]] = {
    "delta-router-replay": {"miles": (*_SESSION_REQUEST, *_SESSION_SAMPLES)},
    "kv-preservation": {"miles": _SESSION_REQUEST},
}

#: Hook to the bindings through which it is called: what a feature of
#: somebody else's plugin, for which there is no probe here, needs.
HOOK_BINDINGS: dict[str, Needs] = {
    "complete_arguments": ("launch/arguments",),
    "server_arguments": ("launch/arguments", "launch/server-arguments"),
    "check_running_server": ("launch/running-server",),
    "server_proofs": _REQUEST,
    "generate_request_fields": _REQUEST,
    "wants_weight_version": _REQUEST,
    "reaches_into_sessions": ("launch/arguments",),
    "session_request_fields": _SESSION_REQUEST,
    "session_response_refusal": _SESSION_REQUEST,
    "routed_experts_of_session": _SESSION_SAMPLES,
    "routed_experts_of_pair": (*_SCOPE, "rollout/pairs"),
    "routed_experts_of_response": _ROUTES,
    "routed_experts_on_the_wire": _ENCODED,
    "routed_experts_for_training": _REPLAY,
    "token_log_probs": (*_OUTPUT, *_LOG_PROBS),
    "routing_key": (*_ROLLOUT_KEY, *_SESSION_KEY),
    "data_parallel_rank": _ROLLOUT_KEY,
    "expected_prefix_tokens": _ROUTER,
    "server_for_request": _ROUTER,
    "request_routed": _ROUTER,
    "request_answered": _ROUTER,
    "rollout_response": (*_REQUEST, *_SEEN),
    "rollout_verdict": (*_REQUEST, *_SEEN, *_CANCELLED),
    "rollout_step_metrics": (*_REQUEST, *_SEEN),
    "split_train_batch": _SPLIT,
    "offloaded_optimizer": _OFFLOADED,
    "checkpoint_waves": _SAVE,
    "export_checkpoint": _EXPORT,
}
