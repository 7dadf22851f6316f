"""Feature `chunked-checkpoint-staging`: a save holds a bounded part of the shard in host memory.

waves     plan_waves(): which tensors are staged together, and which of them share a file
settings  the slug, and what a user can set
feature   the hooks
"""

from miles_periodic.plugins.chunked_checkpoint_staging.settings import (
    ChunkedCheckpointStagingSettings,
)
from miles_periodic.plugins.chunked_checkpoint_staging.waves import plan_waves

__all__ = ["ChunkedCheckpointStagingSettings", "plan_waves"]
