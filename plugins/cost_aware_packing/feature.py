"""The hooks of cost-aware-packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from miles_periodic.hooks import DataParallelSplit, Feature, PeriodicError, TrainBatch, hookimpl
from miles_periodic.plugins.cost_aware_packing.cost_model import CostModel
from miles_periodic.plugins.cost_aware_packing.data_parallel import SplitPlan, split
from miles_periodic.plugins.cost_aware_packing.settings import SLUG, CostAwarePackingSettings

#: A Miles with this argument plans where a feature's plan replaces it, whatever its flags say,
#: and keeps them for the batches that it splits elsewhere.
_PLANS_MICRO_BATCHES = "balance_by_flops"
_EXACT_TOTAL = 2.0**40


class CostAwarePacking(Feature):
    """Samples go to ranks and micro-batches by what they cost, slot by slot."""

    slug = SLUG
    why = "Data-parallel ranks wait for each other as little as the samples' lengths allow."
    settings_model = CostAwarePackingSettings
    pull_requests = ("miles#1927", "megatron#6684", "megatron#5903", "megatron#2924")
    exit = "Miles plans micro-batches by cost under the token cap, aligned slot by slot."

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if _PLANS_MICRO_BATCHES in arguments:
            return None
        return {"balance_data": False} if arguments.get("balance_data") else None

    @hookimpl
    def split_train_batch(self, batch: TrainBatch) -> DataParallelSplit | None:
        if batch.data_parallel_size == 1 and not _is_built_under_a_cap(batch):
            return None
        try:
            plan = self._plan(batch)
        except ValueError as error:
            raise PeriodicError(
                f"This rollout's samples cannot be packed: {error}.",
                feature=SLUG,
                remedy=f"Change what it names, or take the feature out with -{SLUG}.",
            ) from error
        if batch.step_of_sample is None and not _is_built_under_a_cap(batch):
            return DataParallelSplit(plan.partitions)
        return DataParallelSplit(plan.partitions, plan.microbatches, plan.slots_per_step)

    def _plan(self, batch: TrainBatch) -> SplitPlan:
        model = CostModel.from_config(
            batch.model, recompute=self.settings.recompute, pad_multiple=batch.length_multiple
        )
        costs = model.sample_costs(batch.lengths)
        return split(
            _lengths_under_cap(batch, model.padded_lengths(batch.lengths)),
            batch.data_parallel_size,
            cost=_exactly_summable(costs) if batch.is_replicated else costs,
            global_batch_size=batch.global_batch_size if batch.step_of_sample is None else None,
            steps=batch.step_of_sample,
            micro_batch_size=batch.micro_batch_size,
            max_tokens=batch.max_tokens,
            max_samples=batch.max_samples,
            slot_multiple=batch.slot_multiple,
            time_budget=0.0 if batch.is_replicated else self.settings.time_budget_seconds,
            seed=self.settings.seed,
        )


def _is_built_under_a_cap(batch: TrainBatch) -> bool:
    return batch.micro_batch_size is None


def _lengths_under_cap(batch: TrainBatch, padded: np.ndarray) -> np.ndarray:
    """Padded lengths, int64 [samples]; no more than the cap where a sample may fill a micro-batch.

    A sample as long as the cap leaves no room for another. That is what one over the cap gets
    where the trainer takes it, and one that is over only by its padding always.
    """
    if batch.max_tokens is None:
        return padded
    whole = batch.takes_oversized | (np.asarray(batch.lengths) <= batch.max_tokens)
    return np.where(whole, np.minimum(padded, batch.max_tokens), padded)


def _exactly_summable(costs: np.ndarray) -> np.ndarray:
    """The costs as whole numbers, float64 [samples], whose sums no order of adding rounds.

    Ranks on unlike processors add in unlike orders, and must still agree on every comparison.
    """
    total = float(costs.sum())
    return np.rint(costs * (_EXACT_TOTAL / total)) if total > 0 else costs
