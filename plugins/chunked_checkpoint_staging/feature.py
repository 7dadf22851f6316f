"""The hooks of chunked-checkpoint-staging."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.conflicts import Conflict, refuse_conflicts
from miles_periodic.hooks.values import CheckpointEntry, CheckpointWaves
from miles_periodic.plugins.chunked_checkpoint_staging.settings import (
    SLUG,
    ChunkedCheckpointStagingSettings,
)
from miles_periodic.plugins.chunked_checkpoint_staging.waves import oversized, plan_waves

logger = logging.getLogger(__name__)

_OTHER_WRITER = "only Megatron's torch_dist saves are staged in waves"
CONFLICTS = (
    Conflict("train_backend", _OTHER_WRITER, "megatron"),
    Conflict("ckpt_format", _OTHER_WRITER, "torch_dist"),
)


class ChunkedCheckpointStaging(Feature):
    """A save is staged and written in waves of bounded host memory."""

    slug = SLUG
    why = "A save holds a bounded part of each rank's shard in host memory instead of all of it."
    settings_model = ChunkedCheckpointStagingSettings
    exit = "Megatron-core bounds the host memory that a synchronous save stages at once."
    default = False

    def __init__(self, settings: ChunkedCheckpointStagingSettings | None = None) -> None:
        super().__init__(settings)
        self._named: set[tuple[str, int]] = set()

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if arguments.get("save") is None:
            return None
        refuse_conflicts(SLUG, CONFLICTS, arguments)
        if arguments.get("async_save") and not self.settings.allow_async_save:
            raise PeriodicError(
                "An asynchronous save cannot be staged in waves: training goes on while it is "
                "written, so the whole shard has to be in host memory before.",
                feature=SLUG,
                target="--async-save",
                expected="synchronous saves",
                found=f"--async-save (strategy {arguments.get('async_strategy', 'mcore')})",
                remedy=f"Drop --async-save, or set {SLUG}.allow_async_save=true to leave "
                "asynchronous saves as they are, unbounded.",
            )
        return None

    @hookimpl
    def checkpoint_waves(
        self, entries: Sequence[CheckpointEntry], num_writers: int
    ) -> CheckpointWaves:
        staging_bytes = self.settings.staging_bytes
        for entry in oversized(entries, staging_bytes):
            if (entry.name, entry.staged_bytes) not in self._named:
                self._named.add((entry.name, entry.staged_bytes))
                logger.warning(
                    "%s: %s takes %d bytes by itself, more than staging_bytes=%d; it is staged "
                    "alone.",
                    SLUG,
                    entry.name,
                    entry.staged_bytes,
                    staging_bytes,
                )
        return plan_waves(entries, staging_bytes=staging_bytes, num_writers=num_writers)
