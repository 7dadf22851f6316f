"""The plugin `acme`: a request goes to the server with the most room in its KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from miles_periodic.hooks import (
    Feature,
    FeatureSettings,
    PeriodicError,
    RoutedRequest,
    ServerState,
    hookimpl,
)


class RoomiestServerSettings(FeatureSettings):
    """Table `[roomiest-server]`."""

    max_kv_use: float = Field(default=0.9, gt=0.0, le=1.0)
    """Share of its KV cache from which on a server counts as full."""


class RoomiestServer(Feature):
    """One decision of Miles's Python router, taken by what its servers report."""

    slug = "roomiest-server"
    why = "A request goes to the server with the most room in its KV cache."
    settings_model = RoomiestServerSettings
    exit = "Miles's router looks at the KV caches of its servers."

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> None:
        if not arguments.get("use_miles_router"):
            raise PeriodicError(
                "roomiest-server chooses in Miles's Python router, and this run has another.",
                feature=self.slug,
                remedy="Add --use-miles-router, or take it out: -roomiest-server.",
            )

    @hookimpl
    def server_for_request(
        self, request: RoutedRequest, rollout_key: str | None, servers: Sequence[ServerState]
    ) -> str | None:
        roomy = [server for server in servers if server.kv_use < self.settings.max_kv_use]
        return min(roomy, key=lambda s: (s.kv_use, s.load)).url if roomy else None


def features() -> tuple[type[Feature], ...]:
    """The entry point: every feature of this plugin."""
    return (RoomiestServer,)
