"""Split a batch over data-parallel ranks the way a trainer with per-rank sample lists takes it.

Such a trainer hands each rank a list of sample indices, reads an optimizer step from each run of
`global_batch_size / ranks` local samples, and cuts that run into micro-batches: either of a fixed
number of consecutive samples, or by an explicit list of local positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from miles_periodic.plugins.cost_aware_packing.equal_counts import level_counts
from miles_periodic.plugins.cost_aware_packing.packing import (
    level_ranks,
    plan_steps,
    samples_of_steps,
)
from miles_periodic.plugins.cost_aware_packing.problem import StepProblem
from miles_periodic.plugins.cost_aware_packing.schedule import Schedule
from miles_periodic.plugins.cost_aware_packing.validation import (
    check_at_least_one,
    check_cap,
    checked_samples,
)


@dataclass(frozen=True)
class SplitPlan:
    """Samples per rank, in the order in which the rank trains them.

    `partitions[rank]` are indices into the batch; `microbatches[rank][slot]` are positions in
    `partitions[rank]`, consecutive and without gaps from slot to slot; `slots_per_step[step]` is
    the same on every rank. `schedule` is the same plan with indices into the batch.
    """

    schedule: Schedule
    partitions: tuple[tuple[int, ...], ...]
    microbatches: tuple[tuple[tuple[int, ...], ...], ...]

    @classmethod
    def from_schedule(cls, schedule: Schedule) -> SplitPlan:
        partitions = tuple(
            tuple(sample for microbatch in rank for sample in microbatch)
            for rank in schedule.microbatches
        )
        return cls(schedule, partitions, tuple(map(_positions, schedule.microbatches)))

    @property
    def slots_per_step(self) -> tuple[int, ...]:
        return self.schedule.slots_per_step

    @property
    def has_equal_counts(self) -> bool:
        """Every rank trains the same number of samples in every step."""
        return all(
            len({sum(map(len, rank)) for rank in ranks}) == 1 for ranks in self.schedule.steps()
        )


def split(
    lengths: Sequence[int] | np.ndarray,
    data_parallel_size: int,
    *,
    cost: Sequence[float] | np.ndarray,
    global_batch_size: int,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    slot_multiple: int = 1,
    time_budget: float = 0.2,
    seed: int = 0,
) -> SplitPlan:
    """Plan which rank trains which sample, and when.

    Samples `k * global_batch_size` to `(k + 1) * global_batch_size - 1` stay in step k. Give
    exactly one of two rules for micro-batches:

    * `micro_batch_size`: exactly so many samples in each; every rank gets the same number of
      samples in every step, and its order alone carries the plan.
    * `max_tokens`: as many as fit; every rank gets the same number of micro-batches, a multiple of
      `slot_multiple` in each step. Sample counts are made equal, too, as far as the cap lets them
      (`has_equal_counts`); training does not depend on it, per-rank averages in logs do.

    `lengths`, `cost`, `time_budget` and `seed` are those of `packing.pack`.

    Raises:
        ValueError: both or no rule, a batch that steps, ranks and micro-batches do not divide, and
            all that `packing.pack` raises. Each says what to change.
    """
    lengths_array, costs = checked_samples(lengths, cost)
    check_at_least_one(
        data_parallel_size=data_parallel_size,
        global_batch_size=global_batch_size,
        slot_multiple=slot_multiple,
    )
    if (micro_batch_size is None) == (max_tokens is None):
        raise ValueError("pass exactly one of micro_batch_size and max_tokens")
    _check_divides(len(lengths_array), "global_batch_size", global_batch_size, "trim the batch")
    if max_tokens is not None:
        check_at_least_one(max_tokens=max_tokens)
        check_cap(lengths_array, max_tokens)
        rules = {"max_tokens": max_tokens, "slot_multiple": slot_multiple}
    else:
        check_at_least_one(micro_batch_size=micro_batch_size)
        rules = {"samples_per_bin": micro_batch_size}
        per_slot = data_parallel_size * micro_batch_size
        _check_divides(
            global_batch_size,
            "data_parallel_size * micro_batch_size",
            per_slot,
            "change global_batch_size or micro_batch_size",
        )
    step_of_sample = np.arange(len(lengths_array)) // global_batch_size
    problems = [
        (samples, StepProblem(lengths_array[samples], costs[samples], data_parallel_size, **rules))
        for samples in samples_of_steps(step_of_sample)
    ]
    schedule = plan_steps(
        problems,
        costs,
        time_budget=time_budget,
        seed=seed,
        arrange=level_ranks if max_tokens is None else level_counts,
    )
    return SplitPlan.from_schedule(schedule)


def _positions(microbatches: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    stops = np.cumsum([len(microbatch) for microbatch in microbatches]).tolist()
    return tuple(tuple(range(start, stop)) for start, stop in zip([0, *stops], stops, strict=False))


def _check_divides(total: int, name: str, divisor: int, remedy: str) -> None:
    if total % divisor or not total:
        raise ValueError(f"{total} samples are no multiple of {name} {divisor}: {remedy}")
