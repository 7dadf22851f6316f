"""Megatron trains with an Adam whose state its checkpoint code can load again."""

from __future__ import annotations

from types import ModuleType

from miles_periodic.compat.cpu.stand_in import StandIn, owner_of


def adam_as_with_apex(optimizer: ModuleType) -> None:
    """Build, save and load the Adam of compat/cpu/fused_adam.py.

    Symptom: "output with shape [] doesn't match the broadcast shape" when a run goes on from its
    checkpoint. Trigger: without Transformer Engine and Apex torch's AdamW keeps a `step` for each
    weight, which Megatron writes once, in the order of rank 0. Safe: on a GPU nobody trains
    without one of the two, and the arithmetic is torch's.
    """
    owner_of(optimizer, "Adam")
    distributed, _ = owner_of(optimizer, "distrib_optimizer.HAVE_APEX_OR_TE")

    # Imports torch, which not every process of a run has.
    from miles_periodic.compat.cpu.fused_adam import as_if_apex_were_there

    as_if_apex_were_there(optimizer, distributed)


STAND_INS = (
    StandIn(
        name="fused-adam/as-with-apex",
        module="megatron.core.optimizer",
        apply=adam_as_with_apex,
        why="Without Transformer Engine and Apex Megatron cannot load the optimizer that it saved.",
        process="trainer",
    ),
)
