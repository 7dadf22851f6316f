"""Who trains on what, in a Miles that plans micro-batches where it splits a rollout step's batch.

Miles at git main computes ranks and micro-batches in one function of the rollout manager; trainers
take the micro-batches as they come.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.boot import member
from miles_periodic.hooks.alignment import zigzag_multiple
from miles_periodic.hooks.values import DataParallelSplit, TrainBatch

#: partitions, micro_batch_indices, num_microbatches, num_rollouts: what Miles's function returns.
Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]


def schedule(wrapped, instance, args, kwargs) -> Schedule:
    """Symptom: micro-batches are filled by tokens, or by FLOPs without a cap; ranks do not line up.

    Trigger: a rollout step's batch is split over the train ranks. Takes down: the step, where its
    samples cannot be packed at all. Safe because Miles's own function runs first: which rollouts
    train in which optimizer step, and which are dropped, stays its decision, as do its refusals;
    only inside a step samples change micro-batch and rank. Upstream: radixark/miles#1927.
    """
    planned = wrapped(*args, **kwargs)
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    steps = _steps(planned)
    samples = sorted(steps)
    batch = _batch(
        call["args"],
        call["train_parallel_config"],
        lengths=[call["total_lengths"][sample] for sample in samples],
        steps=[steps[sample] for sample in samples],
    )
    plan = manager().hook.split_train_batch(batch=batch)
    if plan is None:
        return planned
    return _as_schedule(plan, samples, planned[-1])


def _steps(planned: Schedule) -> dict[int, int]:
    """Sample to optimizer step, of those that Miles trains on."""
    partitions, micro_batch_indices, num_microbatches, _ = planned
    step_of_slot = [step for step, count in enumerate(num_microbatches) for _ in range(count)]
    return {
        partition[position]: step
        for partition, micro_batches in zip(partitions, micro_batch_indices, strict=True)
        for step, micro_batch in zip(step_of_slot, micro_batches, strict=True)
        for position in micro_batch
    }


def _batch(
    arguments: Any, parallel: Mapping[str, Any], *, lengths: list[int], steps: list[int]
) -> TrainBatch:
    num_ranks, virtual = parallel["dp_size"], parallel["vpp_size"] or 1
    multiple = parallel["microbatch_group_size_per_vp_stage"] if virtual > 1 else 1
    if arguments.use_dynamic_batch_size:
        max_tokens, size = arguments.max_tokens_per_gpu * parallel["cp_size"], None
        tell_oversized(lengths, max_tokens)
    else:
        max_tokens, size = None, arguments.micro_batch_size
    is_whole = size is not None and not any(
        steps.count(step) % (num_ranks * size * multiple) for step in set(steps)
    )
    return TrainBatch(
        lengths=lengths,
        data_parallel_size=num_ranks,
        global_batch_size=None,
        micro_batch_size=size if is_whole else None,
        max_tokens=max_tokens,
        slot_multiple=multiple,
        model=vars(arguments),
        step_of_sample=steps,
        # Miles lets the last of a step's micro-batches be short.
        max_samples=None if is_whole else size,
        length_multiple=_length_multiple(arguments, parallel["cp_size"]),
        takes_oversized=True,
    )


def _length_multiple(arguments: Any, context_parallel_size: int) -> int:
    # With --allgather-cp a row is cut once, and no sample is padded.
    is_cut_once = getattr(arguments, "allgather_cp", False)
    return 1 if is_cut_once else zigzag_multiple(context_parallel_size)


def tell_oversized(lengths: Sequence[int], max_tokens: int) -> None:
    """Say which samples no packing can keep under the cap."""
    num_oversized = sum(length > max_tokens for length in lengths)
    if num_oversized:
        member().notice(
            f"{num_oversized} samples of up to {max(lengths)} tokens are over the cap of "
            f"{max_tokens} tokens per micro-batch; each trains alone, as Miles plans it"
        )


def _as_schedule(
    plan: DataParallelSplit, samples: Sequence[int], num_rollouts: list[int]
) -> Schedule:
    return (
        [[samples[position] for position in partition] for partition in plan.partitions],
        [[list(micro_batch) for micro_batch in rank] for rank in plan.micro_batches],
        list(plan.num_micro_batches),
        num_rollouts,
    )


def unplanned(wrapped, instance, args, kwargs):
    """Symptom: some batches are split by stride or tokens although packing by cost is on.

    Trigger: Miles splits without a plan of micro-batches (several LoRA adapters, images, trainers
    that split for themselves). Takes down: nothing. Safe because it only tells, once in a
    process. Upstream: radixark/miles#1927.
    """
    _tell_unplanned()
    return wrapped(*args, **kwargs)


@lru_cache(maxsize=1)
def _tell_unplanned() -> None:
    member().notice(
        "Miles split a batch without planning its micro-batches, as it does with several LoRA "
        "adapters, with images and where trainers split for themselves: cost-aware-packing had "
        "no part in it"
    )
