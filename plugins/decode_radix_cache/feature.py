"""The hooks of decode-radix-cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks import Feature, hookimpl
from miles_periodic.hooks.values import ServerGroup
from miles_periodic.plugins.decode_radix_cache.conflicts import FLAG, first_conflict
from miles_periodic.plugins.decode_radix_cache.proof import Generate, check_report, check_reuse
from miles_periodic.plugins.decode_radix_cache.settings import SLUG, DecodeRadixCacheSettings

ROLE = "decode"


class DecodeRadixCache(Feature):
    """Decode servers keep prefixes, so that only what they lack crosses from prefill."""

    slug = SLUG
    why = "A turn moves the KV of its new tokens from prefill to decode, not of its whole prefix."
    settings_model = DecodeRadixCacheSettings
    pull_requests = (
        *("sglang#19746", "sglang#24230", "sglang#24257", "sglang#26288"),
        *("sglang#32170", "sglang#35837"),
    )
    server_roles = (ROLE,)
    exit = "Miles switches the cache on for decode servers by itself and checks that it is on."

    @hookimpl
    def server_arguments(self, servers: ServerGroup) -> Mapping[str, Any] | None:
        if servers.role != ROLE:
            return None
        if conflict := first_conflict(servers):
            raise conflict
        return {FLAG: True}

    @hookimpl
    def check_running_server(
        self, servers: ServerGroup, report: Mapping[str, Any], generate: Generate
    ) -> None:
        if servers.role != ROLE:
            return
        check_report(report)
        if self.settings.prove_reuse:
            check_reuse(report, generate)
