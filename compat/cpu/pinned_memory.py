"""Allocations that ask for pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace

FACTORIES = ("zeros", "empty", "ones", "full", "tensor", "empty_like")


def _pageable(factory: Callable[..., Any]) -> Callable[..., Any]:
    def allocate(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return allocate


def allocate_pageable(torch: ModuleType) -> None:
    """Drop `pin_memory` from torch's factory functions.

    Symptom: "Cannot access accelerator device when none is available". Trigger:
    miles/utils/replay_base.py:21, miles/utils/tensor_backper.py:59 and the host buffer of
    sglang/srt/layers/moe/routed_experts_capturer.py:111 ask for pinned memory without a condition.
    Safe: pinning only speeds up copies to a device that is not there.
    """
    for factory in FACTORIES:
        replace(torch, factory, _pageable)


STAND_INS = (
    StandIn(
        name="pinned-memory/factories",
        module="torch",
        apply=allocate_pageable,
        why="Pinned memory needs a driver; Miles and SGLang ask for it without a condition.",
    ),
)
