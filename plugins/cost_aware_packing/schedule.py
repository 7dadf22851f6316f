"""What a packing is: micro-batches by rank and slot, their cost, and the rules that they keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

MicroBatch = tuple[int, ...]
RankMicroBatches = tuple[MicroBatch, ...]


@dataclass(frozen=True)
class Schedule:
    """A plan for one batch of samples.

    `microbatches[rank][slot]` holds sample indices; every rank has the same number of slots, and
    the slots of optimizer step k come before those of step k + 1. `slot_time` is the sum over
    slots of the dearest micro-batch among the ranks; `lower_bound` is a number that no schedule of
    the same samples can go below. Both are in the unit of the `cost` that was packed.
    """

    microbatches: tuple[RankMicroBatches, ...]
    slot_time: float
    lower_bound: float
    slots_per_step: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """`slot_time` over `lower_bound`: 1.0 is optimal, also for samples that cost nothing."""
        return self.slot_time / self.lower_bound if self.lower_bound > 0 else 1.0

    @property
    def data_parallel_size(self) -> int:
        return len(self.microbatches)

    @property
    def num_slots(self) -> int:
        return sum(self.slots_per_step)

    def steps(self) -> Iterator[tuple[RankMicroBatches, ...]]:
        """The micro-batches of each optimizer step in turn, as `[rank][slot of the step]`."""
        start = 0
        for num_slots in self.slots_per_step:
            stop = start + num_slots
            yield tuple(rank[start:stop] for rank in self.microbatches)
            start = stop


def slot_time(
    microbatches: Sequence[Sequence[Sequence[int]]], cost: Sequence[float] | np.ndarray
) -> float:
    """Sum over slots of the dearest micro-batch among the ranks, in the unit of `cost`.

    `microbatches[rank][slot]` are sample indices. A rank with fewer slots than the longest one
    adds nothing to the slots that it lacks: the others still run them.
    """
    costs = np.asarray(cost, dtype=np.float64)
    num_slots = max(len(rank) for rank in microbatches)
    times = np.zeros((len(microbatches), num_slots))
    for rank, row in enumerate(microbatches):
        times[rank, : len(row)] = [costs[list(micro_batch)].sum() for micro_batch in row]
    return float(times.max(axis=0).sum())


def rank_time(
    microbatches: Sequence[Sequence[Sequence[int]]], cost: Sequence[float] | np.ndarray
) -> float:
    """Cost of the dearest rank over its slots: the time where ranks only meet at the end."""
    costs = np.asarray(cost, dtype=np.float64)
    return max(
        float(sum(costs[list(micro_batch)].sum() for micro_batch in rank)) for rank in microbatches
    )


def check_schedule(
    schedule: Schedule,
    lengths: Sequence[int] | np.ndarray,
    *,
    max_tokens: int | None,
    data_parallel_size: int,
    slot_multiple: int = 1,
    groups: Sequence[object] | None = None,
    step_of_sample: Sequence[int] | np.ndarray | None = None,
) -> None:
    """Raise `ValueError` with the first broken rule and where it is broken.

    The rules: every sample exactly once; as many slots on every rank, per step a multiple of
    `slot_multiple`; no empty micro-batch; no micro-batch over `max_tokens` tokens (None: no cap);
    every group inside one step; every sample in the step that `step_of_sample` names.
    """
    _check_shape(schedule, data_parallel_size, slot_multiple)
    _check_coverage(schedule, len(lengths))
    _check_micro_batches(schedule, lengths, max_tokens)
    _check_steps(schedule, groups, step_of_sample)


def _check_shape(schedule: Schedule, data_parallel_size: int, slot_multiple: int) -> None:
    if schedule.data_parallel_size != data_parallel_size:
        raise ValueError(f"{schedule.data_parallel_size} ranks planned, {data_parallel_size} asked")
    for rank, row in enumerate(schedule.microbatches):
        if len(row) != schedule.num_slots:
            raise ValueError(f"rank {rank} has {len(row)} slots, expected {schedule.num_slots}")
    for step, num_slots in enumerate(schedule.slots_per_step):
        if num_slots < 1 or num_slots % slot_multiple:
            raise ValueError(f"step {step}: {num_slots} slots, no multiple of {slot_multiple}")


def _check_coverage(schedule: Schedule, num_samples: int) -> None:
    planned = [i for rank in schedule.microbatches for micro_batch in rank for i in micro_batch]
    if sorted(planned) != list(range(num_samples)):
        raise ValueError(
            f"{len(planned)} planned indices do not cover {num_samples} samples exactly once"
        )


def _check_micro_batches(
    schedule: Schedule, lengths: Sequence[int] | np.ndarray, max_tokens: int | None
) -> None:
    for rank, row in enumerate(schedule.microbatches):
        for slot, micro_batch in enumerate(row):
            if not micro_batch:
                raise ValueError(f"rank {rank} slot {slot}: empty micro-batch")
            num_tokens = sum(int(lengths[i]) for i in micro_batch)
            if max_tokens is not None and num_tokens > max_tokens:
                raise ValueError(f"rank {rank} slot {slot}: {num_tokens} tokens over {max_tokens}")


def _check_steps(
    schedule: Schedule,
    groups: Sequence[object] | None,
    step_of_sample: Sequence[int] | np.ndarray | None,
) -> None:
    step_of_group: dict[object, int] = {}
    for step, ranks in enumerate(schedule.steps()):
        for sample in (i for rank in ranks for micro_batch in rank for i in micro_batch):
            if step_of_sample is not None and step_of_sample[sample] != step:
                raise ValueError(f"sample {sample} is in step {step}, not {step_of_sample[sample]}")
            if groups is not None and step_of_group.setdefault(groups[sample], step) != step:
                raise ValueError(f"group {groups[sample]!r} is split over steps")
