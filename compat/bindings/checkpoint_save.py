"""A synchronous save of a torch_dist checkpoint, staged in waves.

Megatron runs a synchronous save as an asynchronous one that it executes at once; only the former
can be staged in waves, since nothing trains meanwhile.
"""

from __future__ import annotations

import inspect
import logging
from contextvars import ContextVar
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.staged_write import (
    Share,
    checked,
    file_writer,
    write_in_waves,
)
from miles_periodic.compat.bindings.staging_memory import is_view, lies_on_host

logger = logging.getLogger(__name__)

_IS_SYNCHRONOUS: ContextVar[bool] = ContextVar("is_synchronous", default=False)


def synchronous(wrapped, instance, args, kwargs):
    """Symptom: a writer is prepared the same way whether or not training goes on meanwhile.

    Trigger: `save` of the torch_dist strategy. Takes down: nothing. Safe because it only marks the
    call; an asynchronous save does not come through here and stays as Megatron makes it.
    Upstream: radixark/Megatron-LM#61.
    """
    token = _IS_SYNCHRONOUS.set(True)
    try:
        return wrapped(*args, **kwargs)
    finally:
        _IS_SYNCHRONOUS.reset(token)


def keep_host_tensors(wrapped, instance, args, kwargs):
    """Symptom: every host tensor that is a view is cloned before the first byte is written.

    Trigger: a synchronous save of parameters in a flat buffer on the host, or of optimizer state
    that was offloaded. Takes down: nothing. Safe because the views are put back into the buckets
    unchanged, and `in_waves` writes each from a storage that holds nothing else.
    Upstream: radixark/Megatron-LM#61.
    """
    if not _IS_SYNCHRONOUS.get():
        return wrapped(*args, **kwargs)
    call = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    planner = _ViewsApart(call["planner"])
    result = wrapped(call["plan"], planner)
    instance.write_buckets = planner.put_back(instance.write_buckets)
    return result


class _ViewsApart:
    """A planner that shows views of host memory as tensors without any."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner
        self._views: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def resolve_data(self, item: Any) -> Any:
        import torch

        data = self._planner.resolve_data(item)
        if not isinstance(data, torch.Tensor) or not lies_on_host(data) or not is_view(data):
            return data
        self._views[id(item)] = data.detach()
        return torch.empty(0, device="meta")

    def put_back(self, buckets: Any) -> Any:
        return [
            (path, name, (objects, [(i, self._views.get(id(i), tensor)) for i, tensor in tensors]))
            for path, name, (objects, tensors) in buckets
        ]


def in_waves(wrapped, instance, args, kwargs):
    """Symptom: a rank's whole shard is copied to the host before the first byte is written.

    Trigger: a synchronous save. Takes down: the save, on all ranks, where a wave cannot be staged
    or written: the error goes the way of Megatron's own, through the results that each rank
    hands in, so that no metadata is written. Safe because each file is written by Megatron's own
    function from the same items, and the metadata names the files that hold them. Megatron's
    writers are processes forked per file in 0.15 and 0.16, whose death it waits for forever,
    and threads whose error one rank raises alone since 0.17; neither is used.
    Upstream: radixark/Megatron-LM#61.
    """
    native = wrapped(*args, **kwargs)
    if native[0] is None or not _IS_SYNCHRONOUS.get():
        return native
    rank, buckets, results = native[2]
    write_file = file_writer(instance)

    def save(rank: int, buckets: Any, results: Any) -> None:
        try:
            share = Share(buckets)
            answer = manager().hook.checkpoint_waves(
                entries=share.entries, num_writers=len(share.buckets)
            )
            plan = checked(answer or share.whole(), share)
            outcome: Any = write_in_waves(share, plan, write_file)
        except Exception as error:
            logger.exception("this rank's share of the checkpoint cannot be written")
            outcome = RuntimeError(f"rank {rank} of the checkpoint: {error!r}")
        results.put(outcome)

    return save, None, [rank, buckets, results]
