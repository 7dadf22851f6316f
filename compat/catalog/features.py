"""Which bindings a feature, a setting of it, or a hook needs on which upstream.

A need is the name of one binding, or a tuple of alternatives: the same decision, taken at another
symbol in another tree. Of alternatives the first whose target the tree has is put in.
"""

from __future__ import annotations

#: As the last of some alternatives: a tree that has none of the others needs none.
NOTHING = ""

Need = str | tuple[str, ...]

#: Put in wherever some feature injects something on that upstream.
ALWAYS: dict[str, tuple[Need, ...]] = {"miles": ("launch/muster",)}

_SCOPE = ("rollout/scope", "rollout/refactored-scope")
_REQUEST: tuple[Need, ...] = (*_SCOPE, "rollout/request")
_ROLLOUT_KEY = (*_SCOPE, "routing/rollout-key")
#: Miles main names the session itself.
_SESSION_KEY = (("routing/session-key", NOTHING),)
_ROUTER = ("routing/request", "routing/server")
_ROUTES: tuple[Need, ...] = (
    *_REQUEST,
    ("rollout/routed-experts", "rollout/routed-experts-of-tokens"),
    ("rollout/truncate", NOTHING),
)
_REPLAY: tuple[Need, ...] = (("training/replay-fill", "training/actor-replay-fill"),)
_SERVERS = ("launch/server-arguments", "launch/running-server")

#: A rollout's start and answers, and the step that it is logged in.
_SEEN = (
    "rollout/start",
    "rollout/refactored-start",
    "rollout/traffic",
    ("rollout/logged-step", "rollout/main-logged-step"),
)
_CANCELLED = ("rollout/cancellable", "rollout/refactored-cancellable", "rollout/group")

#: Feature slug to upstream to what an `Inject` there puts in.
FEATURE_BINDINGS: dict[str, dict[str, tuple[Need, ...]]] = {
    "delta-router-replay": {
        "sglang": (
            "server/carry-start",
            "server/remember-start",
            "server/collect-from-start",
            ("server/align-mixed-batches", NOTHING),
            ("server/own-captured-rows", NOTHING),
        ),
        "miles": (
            "launch/arguments",
            *_ROUTES,
            *_REPLAY,
        ),
    },
    "kv-preservation": {
        "miles": ("launch/arguments", *_REQUEST, *_SEEN),
    },
    "cost-aware-packing": {
        "miles": (
            "launch/arguments",
            "training/split",
            "training/plan",
            "training/micro-batches",
        ),
    },
    "decode-radix-cache": {
        "miles": ("launch/arguments", *_SERVERS),
    },
    "request-routing": {
        "miles": ("launch/arguments",),
    },
}

#: Feature slug to upstream to a setting to what is put in while that setting is on, besides the
#: above, whether the feature is native there or injected.
#: A setting that is left at None is offered: its bindings are put in where the tree has known
#: shapes of all their targets, and the plan says where it has not.
SETTING_BINDINGS: dict[str, dict[str, dict[str, tuple[Need, ...]]]] = {
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
            "compact_wire": (("server/encode-rows", "server/encode-rows-in-mixin"),),
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

_SESSION_REQUEST: tuple[Need, ...] = (
    ("session/chat", "session/begin"),
    ("session/chat-tree", NOTHING),
    ("session/new-rows", "session/proxy"),
    ("session/answer", "session/record"),
)
_SESSION_SAMPLES: tuple[Need, ...] = (
    ("session/full-assembly", NOTHING),
    ("session/assemble", "session/assemble-closures"),
    ("session/widen", NOTHING),
)

#: Feature slug to upstream to what it needs besides for rollouts through Miles's session server. A
#: tree in which some of it cannot be bound has the feature, and runs without a session server.
SESSION_BINDINGS: dict[str, dict[str, tuple[Need, ...]]] = {
    "delta-router-replay": {"miles": (*_SESSION_REQUEST, *_SESSION_SAMPLES)},
    "kv-preservation": {"miles": _SESSION_REQUEST},
}

#: Hook to the bindings, all on one upstream, through which it is called: what a feature of
#: somebody else's plugin, for which there is no probe here, needs.
HOOK_BINDINGS: dict[str, tuple[Need, ...]] = {
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
    "routed_experts_of_pair": ("rollout/scope", "rollout/refactored-scope", "rollout/pairs"),
    "routed_experts_of_response": _ROUTES,
    "routed_experts_on_the_wire": (("server/encode-rows", "server/encode-rows-in-mixin"),),
    "routed_experts_for_training": _REPLAY,
    "routing_key": (*_ROLLOUT_KEY, *_SESSION_KEY),
    "data_parallel_rank": _ROLLOUT_KEY,
    "expected_prefix_tokens": _ROUTER,
    "server_for_request": _ROUTER,
    "request_routed": _ROUTER,
    "request_answered": _ROUTER,
    "rollout_response": (*_REQUEST, *_SEEN),
    "rollout_verdict": (*_REQUEST, *_SEEN, *_CANCELLED),
    "rollout_step_metrics": (*_REQUEST, *_SEEN),
    "split_train_batch": ("training/split", "training/plan", "training/micro-batches"),
}
