"""What a stock release of SGLang needs on a CPU, besides what the wheel's own needs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu import pinned_memory
from miles_periodic.compat.cpu.stand_in import StandIn, replace


def _unregistered(allocate: Callable[..., Any]) -> Callable[..., Any]:
    def pageable(dims, dtype, device, pin_memory, allocator, *granularity, **named):
        return allocate(dims, dtype, device, False, allocator, *granularity, **named)

    return pageable


def allocate_unregistered(common: ModuleType) -> None:
    """Allocate host pools without registering them with CUDA.

    Symptom: "Found no NVIDIA driver on your system". Trigger: the host buffer of routed experts,
    sglang/srt/state_capturer/base.py. Safe: registration only speeds up copies to a device that
    is not there.
    """
    replace(common, "alloc_with_host_register", _unregistered)


def topk_leaves_the_forward_buffer(base: ModuleType) -> None:
    """Copy a step's routes out of the buffer that the next step writes, in order.

    Symptom: with overlap scheduling, rows of a step are those of its successor. Trigger:
    `TopkCaptureOutput.copy_to_cpu` of 0.5.12 to 0.5.14, sglang/srt/state_capturer/base.py, moves
    a view to the CPU on the forward's own stream and stores it one step later. Safe: it is the
    copy that the same line makes on a GPU. Later releases copy by another method, on a stream of
    its own: those are left alone, for what they lack is lacking on a GPU too.
    """
    if not hasattr(base.TopkCaptureOutput, "copy_to_cpu"):
        return

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def copy_to_cpu(self: Any) -> None:
            native(self)
            self.out_cache_loc = self.out_cache_loc.clone()
            self.topk = self.topk.clone()

        return copy_to_cpu

    replace(base, "TopkCaptureOutput.copy_to_cpu", make)


STAND_INS = (
    *pinned_memory.STAND_INS,
    StandIn(
        name="host-pool/unregistered",
        module="sglang.srt.mem_cache.pool_host.common",
        apply=allocate_unregistered,
        why="Host pools register their memory with CUDA, which needs a driver.",
    ),
    StandIn(
        name="copies/captured-topk",
        module="sglang.srt.state_capturer.base",
        apply=topk_leaves_the_forward_buffer,
        why="The routes of a step are kept as a view of a buffer that the next step overwrites.",
    ),
)
