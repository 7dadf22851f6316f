"""What a prefill or decode server needs on a CPU besides what every server does."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu import stock_sglang
from miles_periodic.compat.cpu.stand_in import StandIn, replace


def happened_events(torch: ModuleType) -> None:
    """Make CUDA events that have always happened, on streams that are always through.

    Symptom: "Torch not compiled with CUDA enabled" in the prefill scheduler. Trigger:
    sglang/srt/disaggregation/prefill.py records an event before it hands page indices or an early
    chunk to the sender. Safe: on a CPU the forward pass is over when it returns.
    """
    from miles_periodic.compat.cpu.cuda_mode import Event, Stream

    replace(torch, "cuda.Event", lambda native: Event)
    replace(torch, "cuda.current_stream", lambda native: lambda *args: Stream())


def host_memory(api: ModuleType) -> None:
    """Register KV pools with NIXL as the host memory that they are.

    Symptom: NIXL finds no backend for the registration. Trigger:
    sglang/srt/disaggregation/nixl/conn.py names every pool "VRAM". Safe: only the name changes.
    """

    for name in ("register_memory", "get_reg_descs", "get_xfer_descs", "prep_xfer_dlist"):
        replace(api, f"nixl_agent.{name}", _in_host_memory)


def _in_host_memory(native: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: _host(value) for name, value in kwargs.items()}
        return native(*(_host(value) for value in args), **named)

    return call


def _host(value: Any) -> Any:
    return "DRAM" if isinstance(value, str) and value == "VRAM" else value


STAND_INS = (
    *stock_sglang.STAND_INS,
    StandIn(
        name="prefill-decode/events",
        module="torch",
        apply=happened_events,
        why="A prefill server records CUDA events before it sends.",
    ),
    StandIn(
        name="prefill-decode/host-memory",
        module="nixl._api",
        apply=host_memory,
        why="NIXL is told that host memory is a GPU's.",
    ),
)
