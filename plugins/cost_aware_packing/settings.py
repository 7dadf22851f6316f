"""What a user can set for cost-aware-packing."""

from __future__ import annotations

from pydantic import Field

from miles_periodic.hooks.feature import FeatureSettings

SLUG = "cost-aware-packing"


class CostAwarePackingSettings(FeatureSettings):
    """Table `[cost-aware-packing]`."""

    time_budget_seconds: float = Field(default=0.2, ge=0.0, le=60.0, allow_inf_nan=False)
    """Seconds of local search per batch, all its optimizer steps together. With 0 it makes a fixed
    number of exchanges instead, and the plan depends on the batch alone."""

    seed: int = Field(default=0, ge=0)
    """Seed of the local search. Change it only to see how much the plan depends on it."""

    megatron_scheduler: bool | None = None
    """Plan also what Megatron's own scheduler packs (`--sequence-packing-scheduler dp_balanced`),
    in trainings that go without Miles's packing. None, the default, does so where the tree has that
    scheduler in a form that is known."""

    recompute: bool = False
    """Count the forward pass twice, as a trainer with full activation recomputation runs it. It
    moves the weight of attention against the rest by about a tenth."""
