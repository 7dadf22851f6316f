"""The order of one step: loads run ahead, each chunk is stepped, then drained, slot after slot.

Chunk k lives in slot k % num_slots. Three orders are kept by events, whatever the lanes' speeds:
a chunk is stepped after its load, drained after its step, and its slot is loaded again after its
drain. The host issues a drain before the load that waits for it, because waiting for an event
means its latest record at the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles_periodic.plugins.chunked_optimizer_offload.lanes import Lanes

Work = Callable[[int], None]


class Pipeline:
    """Slots' events, kept from step to step: the slots are, too.

    chunk: which one failed if `run` raises. num_written: how many may have been written back.
    """

    def __init__(self, num_slots: int, new_event: Callable[[], Any]) -> None:
        self.num_slots = num_slots
        self.chunk = 0
        self.num_written = 0
        self._loaded, self._stepped, self._drained = (
            [new_event() for _ in range(num_slots)] for _ in range(3)
        )
        self._last_drain: Any = None
        self._ever_drained: set[int] = set()

    def run(self, lanes: Lanes, num_chunks: int, load: Work, step: Work, drain: Work) -> None:
        """Pass every chunk's number to `load`, `step` and `drain`, each on its lane."""
        self.chunk = self.num_written = 0
        # The host memory that is read now was written by the last step's drains.
        self._after_last_step(lanes)
        num_loaded = 0
        for chunk in range(num_chunks):
            self.chunk = chunk
            while num_loaded < min(chunk + self.num_slots, num_chunks):
                self._load(lanes, num_loaded, load)
                num_loaded += 1
            self._step(lanes, chunk, step)
            self.num_written += 1
            self._drain(lanes, chunk, drain)

    def _after_last_step(self, lanes: Lanes) -> None:
        if self._last_drain is not None:
            lanes.load.wait(self._drained[self._last_drain])
            lanes.step.wait(self._drained[self._last_drain])

    def _load(self, lanes: Lanes, chunk: int, load: Work) -> None:
        slot = chunk % self.num_slots
        if slot in self._ever_drained:
            lanes.load.wait(self._drained[slot])
        lanes.load.run(lambda: load(chunk))
        lanes.load.record(self._loaded[slot])

    def _step(self, lanes: Lanes, chunk: int, step: Work) -> None:
        slot = chunk % self.num_slots
        lanes.step.wait(self._loaded[slot])
        lanes.step.run(lambda: step(chunk))
        lanes.step.record(self._stepped[slot])

    def _drain(self, lanes: Lanes, chunk: int, drain: Work) -> None:
        slot = chunk % self.num_slots
        lanes.drain.wait(self._stepped[slot])
        lanes.drain.run(lambda: drain(chunk))
        lanes.drain.record(self._drained[slot])
        self._ever_drained.add(slot)
        self._last_drain = slot
