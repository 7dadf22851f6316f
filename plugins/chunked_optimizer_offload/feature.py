"""The hooks of chunked-optimizer-offload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks import Feature, hookimpl
from miles_periodic.hooks.values import OffloadedOptimizer
from miles_periodic.plugins.chunked_optimizer_offload.conflicts import (
    refuse_arguments,
    refuse_beside_native,
)
from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    SLUG,
    ChunkedOptimizerOffloadSettings,
)
from miles_periodic.plugins.chunked_optimizer_offload.slots import MAX_SLOTS

MIB = 1 << 20
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
        refuse_arguments(arguments)
        return None

    def _chunk_mib(self) -> int:
        """As our own workspace is cut; a chunk of 0 would be all there is."""
        chunk_bytes = self.settings.chunk_bytes or self.settings.workspace_bytes // MAX_SLOTS
        return max(1, chunk_bytes // MIB)

    @hookimpl
    def offloaded_optimizer(self, optimizer: Any) -> OffloadedOptimizer | None:
        from miles_periodic.plugins.chunked_optimizer_offload.take_over import in_place_of

        return in_place_of(optimizer, self.settings)
