"""chunked-optimizer-offload: Adam whose masters and moments live in host memory.

adam            ChunkedAdam, the optimizer
rules           whose arithmetic steps a chunk: torch's AdamW, or an optimizer with `step` in groups
layout          where each parameter lies in host memory
schedule        chunks, pieces and runs of one step
moments         each parameter's state, over persistent views
host_memory     persistent host tensors, pinned beside a GPU
slots           how many chunks fit into the limits that a user gives
workspace       the slots on the device
lanes           three streams, or none
pipeline        the order in which slots are loaded, stepped and drained
gradients       which parameters a step steps
stepper         one step: plan, workspace and pipeline together
prepared        a chunk's views, made once
residency       what a parameter shows while its data is away, and giving it back
take_over       a ChunkedAdam in the place of an optimizer that was built already
exchange        state of either optimizer kind, copied in
feature         the hooks: arguments that conflict, and the optimizer of a trainer
conflicts       what a command line cannot have besides
settings        the slug, and what a user can set

Names that need torch are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    SLUG,
    ChunkedOptimizerOffloadSettings,
)

_NEEDS_TORCH = {
    "AdamWRule": "rules",
    "ChunkedAdam": "adam",
    "GroupStepRule": "rules",
    "StepFailed": "adam",
    "SteppedPiece": "prepared",
}

__all__ = ["SLUG", "ChunkedOptimizerOffloadSettings", *_NEEDS_TORCH]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
