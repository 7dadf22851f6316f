"""What starts a run: the parsed command line, the muster, and the servers' arguments."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS = (
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
        name="launch/server-arguments",
        upstream="miles",
        target="miles.backends.sglang_utils.sglang_engine:_compute_server_args",
        adapter=f"{_ADAPTERS}.server_groups:complete",
        relies_on=("miles.backends.sglang_utils.sglang_config:SglangConfig",),
    ),
    Binding(
        name="launch/running-server",
        upstream="miles",
        target="miles.backends.sglang_utils.sglang_engine:SGLangEngine._init_normal",
        adapter=f"{_ADAPTERS}.running_server:check",
    ),
)
