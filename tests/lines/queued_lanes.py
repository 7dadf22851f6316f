"""Lanes that only queue their work: a stand-in for streams that shows what events alone order.

`synchronize` lets the lanes run in any order that the events allow, drawn by chance. An event that
was recorded twice stands, as on a GPU, for its latest record at the time of the wait.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from miles_periodic.plugins.chunked_optimizer_offload.lanes import Lanes


@dataclass(eq=False)
class Event:
    """records: how often it was recorded. happened: how many of these records have happened."""

    records: int = 0
    happened: int = 0


@dataclass
class QueuedLane:
    device: QueuedDevice
    name: str
    queue: deque = field(default_factory=deque)

    def run(self, work: Callable[[], None]) -> None:
        self.queue.append(("run", work, 0))

    def record(self, event: Event) -> None:
        event.records += 1
        self.queue.append(("record", event, event.records))

    def wait(self, event: Event) -> None:
        self.queue.append(("wait", event, event.records))

    def synchronize(self) -> None:
        self.device.run_until(self)

    def can_go_on(self) -> bool:
        if not self.queue:
            return False
        kind, what, number = self.queue[0]
        return kind != "wait" or what.happened >= number

    def go_on(self) -> None:
        kind, what, number = self.queue.popleft()
        if kind == "run":
            what()
        elif kind == "record":
            what.happened = max(what.happened, number)


class QueuedDevice:
    """Three lanes and the chance that decides which of them goes on."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.all = [QueuedLane(self, name) for name in ("load", "step", "drain")]
        self.made = Lanes(*self.all, Event)

    def lanes(self) -> Lanes:
        return self.made

    def run_until(self, lane: QueuedLane) -> None:
        """One entry at a time of a lane that can go on, until `lane` has nothing left."""
        while lane.queue:
            ready = [each for each in self.all if each.can_go_on()]
            assert ready, "every lane waits for another"
            self.chance.choice(ready).go_on()
