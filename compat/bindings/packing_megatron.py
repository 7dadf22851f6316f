"""What Megatron's own sequence packing scheduler puts into micro-batches, and on which rank."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.hooks.values import TrainBatch

#: Sample ids by micro-batch and rank of data times context parallelism.
Groups = list[list[list[int]]]


def groups(wrapped, instance, args, kwargs) -> Groups:
    """Symptom: micro-batches are filled in the order of the samples, whatever these cost.

    Trigger: Megatron's training loop packs a global batch (`--sequence-packing-scheduler
    dp_balanced`); Miles never does, it hands Megatron packed micro-batches. Takes down: the step,
    where its samples cannot be packed at all. Safe because the answer has the same form, follows
    from the gathered lengths alone, so that all ranks find the same, and is what Megatron then
    checks and reroutes by. Upstream: NVIDIA/Megatron-LM#6684.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    samples = [(int(name), int(length)) for name, length in call["sample_id_seqlens"]]
    plan = manager().hook.split_train_batch(
        batch=_batch(instance, [length for _, length in samples])
    )
    if plan is None:
        return wrapped(*args, **kwargs)
    ranks = [
        [[samples[partition[position]][0] for position in micro_batch] for micro_batch in rank]
        for partition, rank in zip(plan.partitions, plan.micro_batches, strict=True)
    ]
    return _groups(ranks, instance.cp_size)


def _batch(scheduler: Any, lengths: list[int]) -> TrainBatch:
    from megatron.training import get_args

    return TrainBatch(
        lengths=lengths,
        data_parallel_size=scheduler.dp_size,
        global_batch_size=None,
        micro_batch_size=None,
        max_tokens=scheduler.max_seqlen_per_dp_cp_rank * scheduler.cp_size,
        slot_multiple=scheduler.microbatch_group_size_per_vp_stage or 1,
        model=vars(get_args()),
        step_of_sample=[0] * len(lengths),
        max_samples=getattr(scheduler, "max_num_seqs", None),
        takes_oversized=True,
        is_replicated=True,
    )


def _groups(ranks: Sequence[Sequence[list[int]]], context_parallel_size: int) -> Groups:
    """Micro-batches `[rank][slot]` as Megatron has them: all ranks that share a sample list it."""
    return [
        [list(micro_batch) for micro_batch in slot for _ in range(context_parallel_size)]
        for slot in zip(*ranks, strict=True)
    ]
