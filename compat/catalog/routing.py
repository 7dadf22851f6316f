"""What decides which server and rank answers a request: clients' keys, and Miles's router."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS = (
    Binding(
        name="routing/rollout-key",
        upstream="miles",
        target="miles.utils.http_utils:post",
        adapter=f"{_ADAPTERS}.routing_keys:for_rollout",
        processes=("rollout-manager",),
    ),
    Binding(
        name="routing/session-key",
        upstream="miles",
        target="miles.rollout.session.session_server:SessionServer.do_proxy",
        adapter=f"{_ADAPTERS}.routing_keys:for_session",
    ),
    Binding(
        name="routing/request",
        upstream="miles",
        target="miles.router.router:MilesRouter.do_proxy",
        adapter=f"{_ADAPTERS}.router:observe",
    ),
    Binding(
        name="routing/server",
        upstream="miles",
        target="miles.router.router:MilesRouter._use_url",
        adapter=f"{_ADAPTERS}.router:choose",
        relies_on=(
            "miles.router.router:MilesRouter.__init__",
            "miles.router.router:MilesRouter._finish_url",
        ),
    ),
)
