"""The hooks of cost-aware-packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_periodic.hooks import DataParallelSplit, Feature, PeriodicError, TrainBatch, hookimpl
from miles_periodic.plugins.cost_aware_packing.cost_model import CostModel
from miles_periodic.plugins.cost_aware_packing.data_parallel import split
from miles_periodic.plugins.cost_aware_packing.settings import SLUG, CostAwarePackingSettings


class CostAwarePacking(Feature):
    """Samples go to ranks and micro-batches by what they cost, slot by slot."""

    slug = SLUG
    why = "Data-parallel ranks wait for each other as little as the samples' lengths allow."
    settings_model = CostAwarePackingSettings
    pull_requests = ("miles#1927", "megatron#6684", "megatron#5903", "megatron#2924")
    exit = "Miles plans micro-batches by cost under the token cap, aligned slot by slot."

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {"balance_data": False} if arguments.get("balance_data") else None

    @hookimpl
    def split_train_batch(self, batch: TrainBatch) -> DataParallelSplit | None:
        if batch.data_parallel_size == 1 and batch.max_tokens is None:
            return None
        try:
            costs = CostModel.from_config(batch.model, recompute=self.settings.recompute)
            plan = split(
                batch.lengths,
                batch.data_parallel_size,
                cost=costs.sample_costs(batch.lengths),
                global_batch_size=batch.global_batch_size,
                micro_batch_size=batch.micro_batch_size,
                max_tokens=batch.max_tokens,
                slot_multiple=batch.slot_multiple,
                time_budget=self.settings.time_budget_seconds,
                seed=self.settings.seed,
            )
        except ValueError as error:
            raise PeriodicError(
                f"This rollout's samples cannot be packed: {error}.",
                feature=SLUG,
                remedy=f"Change what it names, or take the feature out with -{SLUG}.",
            ) from error
        if batch.max_tokens is None:
            return DataParallelSplit(plan.partitions)
        return DataParallelSplit(plan.partitions, plan.microbatches, plan.slots_per_step)
