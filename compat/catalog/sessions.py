"""What the session server binds, and whoever makes samples of its sessions."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"
_SESSION = "miles.rollout.session"
_ENDPOINT = "miles.rollout.generate_utils.openai_endpoint_utils"
_IN_SERVER = ("session-server",)

#: Miles 0.0.2.
_CLOSURES = (
    Binding(
        name="session/begin",
        upstream="miles",
        target=f"{_SESSION}.linear_trajectory:SessionRegistry.get_session",
        adapter=f"{_ADAPTERS}.session_chat:begin",
        processes=_IN_SERVER,
        relies_on=(f"{_SESSION}.sessions:setup_session_routes",),
    ),
    Binding(
        name="session/proxy",
        upstream="miles",
        target=f"{_SESSION}.session_server:SessionServer.do_proxy",
        adapter=f"{_ADAPTERS}.session_chat:proxy",
        processes=_IN_SERVER,
        relies_on=(f"{_SESSION}.linear_trajectory:LinearTrajectory.token_ids",),
    ),
    Binding(
        name="session/record",
        upstream="miles",
        target=f"{_SESSION}.linear_trajectory:LinearTrajectory.append_record",
        adapter=f"{_ADAPTERS}.session_chat:record",
        processes=_IN_SERVER,
        relies_on=(f"{_SESSION}.session_types:SessionRecord",),
    ),
    Binding(
        name="session/assemble-closures",
        upstream="miles",
        target=f"{_ENDPOINT}:compute_samples_from_openai_records",
        adapter=f"{_ADAPTERS}.session_samples:assemble",
        relies_on=(f"{_ENDPOINT}:_compute_sample_from_openai_record",),
    ),
)

#: Miles main.
_CORE = (
    Binding(
        name="session/chat",
        upstream="miles",
        target=f"{_SESSION}.core:SessionCore.chat_completions",
        adapter=f"{_ADAPTERS}.session_core:chat",
        processes=_IN_SERVER,
        relies_on=(f"{_SESSION}.server:SessionServer.__init__",),
    ),
    Binding(
        name="session/chat-tree",
        upstream="miles",
        target=f"{_SESSION}.v2.core:SessionCoreV2.chat_completions",
        adapter=f"{_ADAPTERS}.session_core:chat",
        relies_on=(f"{_SESSION}.v2.session_state:SessionStateV2",),
    ),
    Binding(
        name="session/new-rows",
        upstream="miles",
        target=f"{_SESSION}.core:SessionCore._maybe_request_addition_r3",
        adapter=f"{_ADAPTERS}.session_core:ask_for_new_rows",
        processes=_IN_SERVER,
        relies_on=(f"{_SESSION}.types:SessionRecord",),
    ),
    Binding(
        name="session/answer",
        upstream="miles",
        target=f"{_SESSION}.core:extract_completion",
        adapter=f"{_ADAPTERS}.session_core:check_answer",
        processes=_IN_SERVER,
    ),
    Binding(
        name="session/full-assembly",
        upstream="miles",
        target=f"{_SESSION}.core:SessionCore.__init__",
        adapter=f"{_ADAPTERS}.session_core:keep_full_assembly",
        processes=_IN_SERVER,
        relies_on=(
            f"{_SESSION}.core:SessionCore.collect_samples",
            f"{_SESSION}.v2.utils:build_leaf_material",
        ),
    ),
    Binding(
        name="session/assemble",
        upstream="miles",
        target=f"{_SESSION}.samples.merge:compute_samples_from_openai_records",
        adapter=f"{_ADAPTERS}.session_samples:assemble",
        processes=_IN_SERVER,
        relies_on=(f"{_SESSION}.samples.merge:_compute_sample_from_openai_record",),
    ),
    Binding(
        name="session/widen",
        upstream="miles",
        target=f"{_SESSION}.samples.codec:encode_samples",
        adapter=f"{_ADAPTERS}.session_samples:widen",
        processes=_IN_SERVER,
    ),
)

BINDINGS = (*_CLOSURES, *_CORE)
