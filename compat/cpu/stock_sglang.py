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


STAND_INS = (
    *pinned_memory.STAND_INS,
    StandIn(
        name="host-pool/unregistered",
        module="sglang.srt.mem_cache.pool_host.common",
        apply=allocate_unregistered,
        why="Host pools register their memory with CUDA, which needs a driver.",
    ),
)
