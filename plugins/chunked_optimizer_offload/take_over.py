"""A ChunkedAdam in the place of an optimizer that was built already."""

from __future__ import annotations

from typing import Any

import torch

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.chunked_optimizer_offload.adam import ChunkedAdam
from miles_periodic.plugins.chunked_optimizer_offload.rules import AdamWRule, GroupStepRule, Rule
from miles_periodic.plugins.chunked_optimizer_offload.settings import (
    SLUG,
    ChunkedOptimizerOffloadSettings,
)

#: Classes that count steps in their groups; by name, because their packages need a GPU.
COUNT_IN_GROUPS = ("FusedAdam",)


def in_place_of(
    optimizer: torch.optim.Optimizer, settings: ChunkedOptimizerOffloadSettings
) -> ChunkedAdam:
    """Take over the parameters, groups and flags of an optimizer that has not stepped yet.

    optimizer: torch's Adam or AdamW, or a FusedAdam, which then steps the chunks; nothing else
    may use it afterwards. Its groups keep their identity. State is made at once, so that loading
    a checkpoint finds where to put it.

    Raises PeriodicError on another class, on one that has stepped, and on what it cannot have.
    """
    if optimizer.state:
        raise _refusal(optimizer, "an optimizer that has not stepped yet", "one with state")
    rule = _rule(optimizer)
    groups = list(optimizer.param_groups)
    try:
        chunked = ChunkedAdam(
            groups,
            workspace_bytes=settings.workspace_bytes,
            chunk_bytes=settings.chunk_bytes,
            moment_dtype=getattr(torch, settings.moment_dtype),
            rule=rule,
        )
    except (TypeError, ValueError) as error:
        raise _refusal(optimizer, "what ChunkedAdam can take over", str(error)) from error
    chunked.make_state()
    chunked.advise_restart()
    return chunked


def _rule(optimizer: torch.optim.Optimizer) -> Rule:
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        if not all("decoupled_weight_decay" in group for group in optimizer.param_groups):
            raise _refusal(
                optimizer,
                "a torch from 2.7 on, whose groups say how weights decay",
                f"torch {torch.__version__}",
            )
        return AdamWRule()
    if type(optimizer).__name__ in COUNT_IN_GROUPS:
        return GroupStepRule(optimizer)
    raise _refusal(optimizer, "torch's Adam or AdamW, or a FusedAdam", type(optimizer).__name__)


def _refusal(optimizer: Any, expected: str, found: str) -> PeriodicError:
    return PeriodicError(
        "The state of this optimizer cannot be offloaded.",
        feature=SLUG,
        target=type(optimizer).__qualname__,
        expected=expected,
        found=found,
        remedy=f"Train with --optimizer adam and FP32 masters, or take the feature out with "
        f"-{SLUG}.",
    )
