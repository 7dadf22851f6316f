"""Three lanes that work side by side: loads, steps, drains. CUDA streams, or nothing at all.

On a GPU the step lane is the stream that is current when a step is called: gradients were made on
it, and what a step allocates on it can be used again by the next forward. Slots are persistent, so
the caching allocator never has to know of the two others (no `record_stream`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Lane(Protocol):
    """Runs what it is given in order; other lanes' work overlaps unless an event orders it."""

    def run(self, work: Callable[[], None]) -> None:
        """Queue `work`; it may not have happened on return."""

    def record(self, event: Any) -> None:
        """Let `event` stand for all that the lane has been given so far."""

    def wait(self, event: Any) -> None:
        """Let what the lane is given from now on start after `event` as it is recorded now."""

    def synchronize(self) -> None:
        """Return when all that the lane has been given has happened."""


@dataclass(frozen=True)
class Lanes:
    """new_event: makes what lanes record and wait for."""

    load: Lane
    step: Lane
    drain: Lane
    new_event: Callable[[], Any]

    def synchronize(self) -> None:
        """Return when all lanes are done."""
        for lane in (self.load, self.step, self.drain):
            lane.synchronize()


class PlainLane:
    """Without a GPU: everything happens at once, in the order in which it is given."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self, event: None) -> None:
        pass

    def wait(self, event: None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class CudaLane:
    """A CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def record(self, event: torch.cuda.Event) -> None:
        event.record(self.stream)

    def wait(self, event: torch.cuda.Event) -> None:
        self.stream.wait_event(event)

    def synchronize(self) -> None:
        self.stream.synchronize()


class LaneMaker:
    """Keeps the two copy streams of a device; the step lane is looked up for each step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies: tuple[CudaLane, CudaLane] | None = None

    def lanes(self) -> Lanes:
        if self.device.type != "cuda":
            plain = PlainLane()
            return Lanes(plain, plain, plain, lambda: None)
        if self._copies is None:
            load, drain = (torch.cuda.Stream(self.device) for _ in range(2))
            self._copies = CudaLane(load), CudaLane(drain)
        step = CudaLane(torch.cuda.current_stream(self.device))
        return Lanes(self._copies[0], step, self._copies[1], torch.cuda.Event)
