"""The only device memory of the optimizer: slots of equal length, reused, and what a step needs.

All of it is one allocation, made at the first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT
from miles_periodic.plugins.chunked_optimizer_offload.slots import FP32_BYTES

MASTER = "master"


class Workspace:
    """num_slots slots on `device`, each with every kind, and the shared parts.

    length: elements of a slot. num_bytes: what it holds.
    """

    def __init__(
        self,
        device: torch.device,
        dtypes: Mapping[str, torch.dtype],
        num_slots: int,
        length: int,
    ) -> None:
        self.num_slots, self.length = num_slots, length
        narrow = {k: torch.float32 for k, dtype in dtypes.items() if dtype != torch.float32}
        slot_bytes = length * sum(dtype.itemsize for dtype in dtypes.values())
        shared_bytes = length * FP32_BYTES * len(narrow)
        self._memory = torch.empty(
            num_slots * slot_bytes + shared_bytes, dtype=torch.uint8, device=device
        )
        parts = self._memory.split([slot_bytes] * num_slots + [shared_bytes])
        self.staged = [dict(_carve(part, dtypes, length)) for part in parts[:num_slots]]
        shared = dict(_carve(parts[-1], narrow, length))
        self.stepped = [{**slot, **shared} for slot in self.staged]
        self.narrow = tuple(narrow)
        self._counters: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def counters(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """One for each piece that a chunk can have; made when it is first asked for."""
        if (device, dtype) not in self._counters:
            made = torch.zeros(self.length // ALIGNMENT, dtype=dtype, device=device)
            self._counters[device, dtype] = made
        return self._counters[device, dtype]

    def num_bytes(self) -> int:
        """On the device."""
        here = self._memory.device
        counters = sum(c.nbytes for c in self._counters.values() if c.device == here)
        return self._memory.nbytes + counters


def _carve(
    memory: torch.Tensor, dtypes: Mapping[str, torch.dtype], length: int
) -> Iterator[tuple[str, torch.Tensor]]:
    start = 0
    for kind, dtype in dtypes.items():
        stop = start + length * dtype.itemsize
        yield kind, memory[start:stop].view(dtype)
        start = stop
