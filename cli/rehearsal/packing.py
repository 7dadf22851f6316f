"""The slots of a run's optimizer steps, their cost, and the lower bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from miles_periodic.plugins.cost_aware_packing.cost_model import CostModel
from miles_periodic.plugins.cost_aware_packing.lower_bound import lower_bound
from miles_periodic.plugins.cost_aware_packing.problem import StepProblem

Record = dict[str, Any]


def measure_packing(
    records: Sequence[Record], model: Mapping[str, Any], micro_batch_size: int
) -> dict[str, Any]:
    """Per step: every rank's micro-batches with tokens and cost, slot time, and its lower bound.

    records: the meter's, of which the shards are read; one step per rollout. model: a Hugging
    Face style description for the cost model. Slot time is the sum over slots of the dearest
    micro-batch among the ranks: ranks wait for each other in every slot.
    """
    costs = CostModel.from_config(model)
    steps = [_one_step(ranks, costs, micro_batch_size) for ranks in _ranks_per_step(records)]
    return {"unit": costs.unit, "per_step": [{"step": i, **step} for i, step in enumerate(steps)]}


def _ranks_per_step(records: Sequence[Record]) -> list[list[list[int]]]:
    """Step to rank to the lengths of its samples, in training order."""
    steps: dict[int, list[list[int]]] = defaultdict(list)
    seen: dict[int, int] = defaultdict(int)
    for record in records:
        if record["kind"] == "shard":
            steps[seen[record["pid"]]].append(record["lengths"])
            seen[record["pid"]] += 1
    return [steps[step] for step in sorted(steps)]


def _one_step(
    ranks: Sequence[Sequence[int]], costs: CostModel, micro_batch_size: int
) -> dict[str, Any]:
    slots = [
        [
            _slot(lengths[first : first + micro_batch_size], costs)
            for first in range(0, len(lengths), micro_batch_size)
        ]
        for lengths in ranks
    ]
    slot_time = sum(max(slot["cost"] for slot in column) for column in zip(*slots, strict=True))
    bound = _bound([n for lengths in ranks for n in lengths], len(ranks), costs, micro_batch_size)
    return {
        "slot_time": slot_time,
        "lower_bound": bound,
        "ratio": slot_time / bound if bound else 1.0,
        "slots": slots,
    }


def _slot(lengths: Sequence[int], costs: CostModel) -> dict[str, float]:
    return {"tokens": sum(lengths), "cost": float(costs.sample_costs(lengths).sum())}


def _bound(
    lengths: Sequence[int], num_ranks: int, costs: CostModel, micro_batch_size: int
) -> float:
    problem = StepProblem(
        np.asarray(lengths),
        costs.sample_costs(lengths),
        num_ranks,
        samples_per_bin=micro_batch_size,
    )
    return float(lower_bound(problem))
