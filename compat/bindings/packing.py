"""Who trains on what, and in which micro-batches.

The split is made where Miles 0.0.2 makes it, in the rollout manager; explicit micro-batches travel
to the trainer on the very box that holds a rank's shard.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.packing_schedule import tell_oversized
from miles_periodic.hooks.alignment import zigzag_multiple
from miles_periodic.hooks.values import DataParallelSplit, TrainBatch

#: Attribute of a shard's box, and key of a rank's data until its iterator is made.
_PLAN = "miles_periodic_micro_batches"
#: What Miles hands to every rank whole and in the batch's order, by which pass@k finds its groups.
_WHOLE = ("raw_reward", "total_lengths", "dynamic_global_batch_size")


def split(wrapped, instance, args, kwargs):
    """Symptom: ranks get every n-th sample, or equal token counts, whatever the samples cost.

    Trigger: a rollout step was generated and is handed to the trainers. Takes down: the step,
    where the samples cannot be packed at all. Safe because Miles's own splitter still runs: the
    samples are only put into the order in which its every-n-th rule yields the planned
    partitions, and its per-sample lists stay aligned. Upstream: radixark/miles#1927.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    data, num_ranks = call["data"], call["dp_size"]
    plan = manager().hook.split_train_batch(batch=_batch(instance.args, data, num_ranks))
    if plan is None:
        return wrapped(*args, **kwargs)
    if plan.micro_batches is not None:
        return _split_by_box(wrapped, data, num_ranks, plan)
    return wrapped(_in_order(data, _interleaved(plan.partitions)), num_ranks)


def _batch(arguments: Any, data: dict[str, Any], num_ranks: int) -> TrainBatch:
    dynamic = arguments.use_dynamic_batch_size
    virtual = getattr(arguments, "virtual_pipeline_model_parallel_size", None) or 1
    group = getattr(arguments, "microbatch_group_size_per_vp_stage", None)
    lengths = [len(tokens) for tokens in data["tokens"]]
    cap = arguments.max_tokens_per_gpu * arguments.context_parallel_size if dynamic else None
    if cap is not None:
        tell_oversized(lengths, cap)
    return TrainBatch(
        lengths=lengths,
        data_parallel_size=num_ranks,
        global_batch_size=data.get("dynamic_global_batch_size", arguments.global_batch_size),
        micro_batch_size=None if dynamic else arguments.micro_batch_size,
        max_tokens=cap,
        slot_multiple=(group or arguments.pipeline_model_parallel_size) if virtual > 1 else 1,
        model=vars(arguments),
        length_multiple=1
        if arguments.allgather_cp
        else zigzag_multiple(arguments.context_parallel_size),
        takes_oversized=True,
    )


def _interleaved(partitions: Sequence[Sequence[int]]) -> list[int]:
    """The order in which taking every n-th sample from the r-th on yields partition r."""
    return [sample for row in zip(*partitions, strict=True) for sample in row]


def _in_order(data: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A copy of a batch whose per-sample values stand in another order."""
    num_samples = len(data["tokens"])
    return {
        key: [value[i] for i in order]
        if key not in _WHOLE and _is_per_sample(value, num_samples)
        else value
        for key, value in data.items()
    }


def _is_per_sample(value: Any, num_samples: int) -> bool:
    """Whether Miles can take one entry per sample: a list, or an array or tensor of a user's own.

    It takes the first ones of a value that is longer.
    """
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__getitem__"):
        return False
    shape = getattr(value, "shape", None)
    return (len(value) if shape is None else (*shape, 0)[0]) >= num_samples


def _split_by_box(wrapped, data: dict[str, Any], num_ranks: int, plan: DataParallelSplit):
    """One rank at a time: ranks may hold different counts, which every-n-th cannot express.

    A rank's samples stay in the batch's order, in which those of a single rank are all of it.
    """
    boxes = []
    lengths = [len(tokens) for tokens in data["tokens"]]
    for partition, micro_batches in zip(plan.partitions, plan.micro_batches, strict=True):
        order = sorted(partition)
        position = {sample: at for at, sample in enumerate(order)}
        indices = [[position[partition[at]] for at in batch] for batch in micro_batches]
        (box,) = wrapped(_in_order(data, order), 1)
        setattr(box, _PLAN, (indices, plan.num_micro_batches, lengths))
        boxes.append(box)
    return boxes


def receive(wrapped, instance, args, kwargs):
    """Symptom: a trainer of Miles 0.0.2 packs its shard itself, by token counts.

    Trigger: a train rank fetches its shard. Takes down: nothing. Safe because the planned
    micro-batches only ride along with the data until the iterator is made from them.
    Upstream: radixark/miles#1927.
    """
    data = wrapped(*args, **kwargs)
    boxes = inspect.signature(wrapped).bind(*args, **kwargs).arguments["rollout_data_ref"]
    plan = getattr(boxes[_data_parallel_rank()], _PLAN, None)
    if plan is not None:
        *data[_PLAN], lengths = plan
        _tell_throughput_meter(lengths)
    return data


def _tell_throughput_meter(lengths: list[int]) -> None:
    """Miles derives its throughput from the lengths of the whole batch, not of one shard."""
    from miles.utils.timer import Timer

    Timer().seq_lens = lengths


def _data_parallel_rank() -> int:
    from miles.backends.training_utils.parallel import get_parallel_state

    return get_parallel_state().intra_dp.rank


def iterate(wrapped, instance, args, kwargs):
    """Symptom: micro-batches are rebuilt on each rank, and their number agreed on by all-reduce.

    Trigger: a train rank makes its data iterator. Takes down: nothing. Safe because without a
    plan Miles's own code runs, and with one every rank was given the same number of
    micro-batches under the same cap. Upstream: radixark/miles#1927.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    plan = call["rollout_data"].pop(_PLAN, None)
    if plan is None:
        return wrapped(*args, **kwargs)
    return _iterators(call["rollout_data"], *plan)


def _iterators(data: dict[str, Any], micro_batches, num_micro_batches):
    from miles.backends.training_utils.data import DataIterator
    from miles.backends.training_utils.parallel import get_parallel_state

    num_stages = get_parallel_state().vpp_size or 1
    indices = [list(micro_batch) for micro_batch in micro_batches]
    iterators = [DataIterator(data, None, indices) for _ in range(num_stages)]
    return iterators, list(num_micro_batches)
