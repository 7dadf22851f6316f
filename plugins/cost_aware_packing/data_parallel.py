"""Split a batch over data-parallel ranks the way a trainer with per-rank sample lists takes it.

Such a trainer hands each rank a list of sample indices and reads an optimizer step from each run
of `global_batch_size / ranks` local samples or of as many micro-batches as it is told. It cuts the
list into micro-batches: of a fixed number of consecutive samples, or as explicit lists say.
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
from miles_periodic.plugins.cost_aware_packing.steps import assign_steps
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
            tuple(sample for micro_batch in rank for sample in micro_batch)
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
    global_batch_size: int | None = None,
    steps: Sequence[int] | None = None,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    max_samples: int | None = None,
    slot_multiple: int = 1,
    time_budget: float = 0.2,
    seed: int = 0,
) -> SplitPlan:
    """Plan which rank trains which sample, and when.

    Give exactly one of two rules for optimizer steps. `global_batch_size`: samples
    `k * global_batch_size` to `(k + 1) * global_batch_size - 1` stay in step k. `steps`: the step
    of each sample, from 0 without gaps.

    Give exactly one of two rules for micro-batches; in each step their number is the same on every
    rank, and a multiple of `slot_multiple`:

    * `micro_batch_size`: exactly so many samples in each; every rank gets the same number of
      samples in every step, and its order alone carries the plan.
    * `max_tokens`, `max_samples` or both: as many as fit. With `global_batch_size` sample counts
      are made equal, too, as far as the caps let them (`has_equal_counts`); training does not
      depend on it, per-rank averages in logs do.

    `lengths`, `cost`, `time_budget` and `seed` are those of `packing.pack`.

    Raises:
        ValueError: both or no rule, a batch that steps, ranks and micro-batches do not divide, and
            all that `packing.pack` raises. Each says what to change.
    """
    if (micro_batch_size is None) == (max_tokens is None and max_samples is None):
        raise ValueError("pass either micro_batch_size, or max_tokens or max_samples")
    lengths_array, costs = checked_samples(lengths, cost)
    check_at_least_one(data_parallel_size=data_parallel_size, slot_multiple=slot_multiple)
    rules = {
        "max_tokens": max_tokens,
        "max_samples": max_samples,
        "samples_per_bin": micro_batch_size,
    }
    check_at_least_one(**{name: rule for name, rule in rules.items() if rule is not None})
    if max_tokens is not None:
        check_cap(lengths_array, max_tokens)
    problems = [
        (
            samples,
            StepProblem(
                lengths_array[samples],
                costs[samples],
                data_parallel_size,
                slot_multiple=slot_multiple,
                **rules,
            ),
        )
        for samples in samples_of_steps(_steps(len(lengths_array), global_batch_size, steps))
    ]
    _check_whole_slots(problems)
    schedule = plan_steps(
        problems,
        costs,
        time_budget=time_budget,
        seed=seed,
        arrange=level_ranks if micro_batch_size or global_batch_size is None else level_counts,
    )
    return SplitPlan.from_schedule(schedule)


def _positions(microbatches: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    stops = np.cumsum([len(micro_batch) for micro_batch in microbatches]).tolist()
    return tuple(tuple(range(start, stop)) for start, stop in zip([0, *stops], stops, strict=False))


def _steps(
    num_samples: int, global_batch_size: int | None, steps: Sequence[int] | None
) -> np.ndarray:
    """Step of each sample, int64 [samples]."""
    if (global_batch_size is None) == (steps is None):
        raise ValueError("pass exactly one of global_batch_size and steps")
    if global_batch_size is None:
        return assign_steps(num_samples, None, steps)
    check_at_least_one(global_batch_size=global_batch_size)
    if num_samples % global_batch_size or not num_samples:
        raise ValueError(
            f"{num_samples} samples are no multiple of global_batch_size {global_batch_size}: "
            "trim the batch"
        )
    return np.arange(num_samples) // global_batch_size


def _check_whole_slots(problems: Sequence[tuple[np.ndarray, StepProblem]]) -> None:
    """Raise `ValueError` where micro-batches of an exact size do not fill whole slots."""
    for step, (_, problem) in enumerate(problems):
        per_bin = problem.samples_per_bin
        if per_bin and problem.num_samples % (problem.num_ranks * per_bin * problem.slot_multiple):
            raise ValueError(
                f"step {step} has {problem.num_samples} samples, no multiple of "
                f"data_parallel_size * micro_batch_size * slot_multiple {problem.num_ranks} * "
                f"{per_bin} * {problem.slot_multiple}: change the number of samples in a step, or "
                "micro_batch_size"
            )
