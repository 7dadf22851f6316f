"""Host memory that the next step overwrites, copied for whoever writes it to a disk."""

from __future__ import annotations

from typing import Any

from miles_periodic.compat.bindings.optimizer_state import host_storages


def copy_for_writer(wrapped, instance, args, kwargs):
    """Symptom: a checkpoint holds some of the next step; a forked writer cannot read pinned memory.

    Trigger: `FileSystemWriterAsync.preload_tensors` hands over what is in host memory as it is.
    Takes down: nothing. Safe because it is the copy that the same line makes of what is on a GPU;
    with chunked-checkpoint-staging, of a wave at a time. Upstream: NVIDIA/Megatron-LM#6244 refuses
    --async-save for this.
    """
    ours = host_storages()
    return [
        (name, key, (written, [(item, _copied(tensor, ours)) for item, tensor in tensors]))
        for name, key, (written, tensors) in wrapped(*args, **kwargs)
    ]


def _copied(tensor: Any, ours: set[int]) -> Any:
    return tensor.clone() if tensor.untyped_storage().data_ptr() in ours else tensor
