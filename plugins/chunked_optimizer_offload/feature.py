"""The hooks of chunked-optimizer-offload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks import Feature, hookimpl
from miles_periodic.hooks.values import OffloadedOptimizer
from miles_periodic.plugins.chunked_optimizer_offload.conflicts import (
    refuse_beside_native,
    refuse_conflicts,
)
from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    MAX_SLOTS,
    SLUG,
    ChunkedOptimizerOffloadSettings,
)

#: Arguments of a Megatron that does it by itself.
NATIVE = "chunked_optimizer_state_offload"
NATIVE_CHUNK_MIB = "optimizer_state_offload_chunk_size_mb"


class ChunkedOptimizerOffload(Feature):
    """Masters and moments stay in host memory and stream through a bounded workspace."""

    slug = SLUG
    why = "Adam's masters and moments leave the GPU, and its step stays there."
    settings_model = ChunkedOptimizerOffloadSettings
    pull_requests = ("megatron#6244", "megatron#6544")
    exit = "Megatron streams masters and moments in chunks under its distributed optimizer."
    default = False

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if NATIVE in arguments:
            refuse_beside_native(arguments, self.settings.moment_dtype)
            chunk_mib = arguments.get(NATIVE_CHUNK_MIB) or self._chunk_mib()
            return {NATIVE: True, NATIVE_CHUNK_MIB: chunk_mib}
        refuse_conflicts(arguments)
        return None

    def _chunk_mib(self) -> int:
        """As our own workspace is cut; a chunk of 0 would be all there is."""
        return self.settings.chunk_mib or max(1, self.settings.workspace_mib // MAX_SLOTS)

    @hookimpl
    def offloaded_optimizer(self, optimizer: Any) -> OffloadedOptimizer | None:
        from miles_periodic.plugins.chunked_optimizer_offload.take_over import in_place_of

        return in_place_of(optimizer, self.settings)
