"""SGLang's weight update, weight check and streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

from miles_periodic.compat.cpu.stand_in import StandIn, owner_of, replace


def streams_that_synchronize(torch_cpu: ModuleType) -> None:
    """Give torch's CPU stream the `synchronize` that every other stream has.

    Symptom: "'Stream' object has no attribute 'synchronize'" in the first weight update. Trigger:
    sglang/srt/managers/scheduler_update_weights_mixin.py:54. Safe: work on a CPU stream is done
    when the call returns, there is nothing to wait for. A torch that has the method keeps its own.
    """
    stream, _ = owner_of(torch_cpu, "Stream.__init__")
    if not hasattr(stream, "synchronize"):
        stream.synchronize = lambda self: None


def post_process_in_place(model_runner: ModuleType) -> None:
    """Post-process updated weights where they are.

    Symptom: "Torch not compiled with CUDA enabled" or "no NVIDIA driver" when an update ends.
    Trigger: sglang/srt/model_executor/model_runner.py:3149 names cuda:<current device> as the
    place to move every module to and back. Safe: the weights already are where they are used.
    """

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def post_process_weights(self: Any, request: Any) -> Any:
            import torch
            from sglang.srt.model_loader import loader

            def stay(module: Any, device: Any) -> Any:
                return contextlib.nullcontext(module)

            owner_of(loader, "device_loading_context")
            with (
                patch.object(torch.cuda, "current_device", lambda: 0),
                patch.object(loader, "device_loading_context", stay),
            ):
                return native(self, request)

        return post_process_weights

    replace(model_runner, "ModelRunner.post_process_weights", make)


def check_against_a_copy(weight_checker: ModuleType) -> None:
    """Compare updated weights with a snapshot that is really a copy.

    Symptom: the check fails with "no NVIDIA driver"; once past that, it can never fail at all.
    Trigger: sglang/srt/utils/weight_checker.py:81 calls `.cuda()`, and in line 32 `.cpu()` of a
    CPU tensor is the tensor itself, so the snapshot follows every change of the weights. Safe: the
    clone is what `.cpu()` is on a GPU.
    """

    def handle(native: Callable[..., Any]) -> Callable[..., Any]:
        def handle_on_cpu(self: Any, action: str) -> Any:
            import torch

            with patch.object(torch.Tensor, "cuda", lambda tensor, *args, **kwargs: tensor):
                return native(self, action)

        return handle_on_cpu

    def snapshot(native: Callable[..., Any]) -> Callable[..., Any]:
        def snapshot_by_copy(self: Any) -> None:
            native(self)
            held = self._snapshot_tensors
            self._snapshot_tensors = {name: tensor.clone() for name, tensor in held.items()}

        return snapshot_by_copy

    replace(weight_checker, "WeightChecker.handle", handle)
    replace(weight_checker, "WeightChecker._snapshot", snapshot)


STAND_INS = (
    StandIn(
        name="sglang-weights/streams",
        module="torch.cpu",
        apply=streams_that_synchronize,
        why="SGLang waits for its streams before an update; a CPU stream cannot be waited for.",
    ),
    StandIn(
        name="sglang-weights/post-process",
        module="sglang.srt.model_executor.model_runner",
        apply=post_process_in_place,
        why="SGLang names a cuda device for the end of a weight update.",
    ),
    StandIn(
        name="sglang-weights/check",
        module="sglang.srt.utils.weight_checker",
        apply=check_against_a_copy,
        why="SGLang's weight check calls .cuda(), and its snapshot is no copy on a CPU.",
    ),
)
