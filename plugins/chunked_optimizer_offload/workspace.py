"""The only device memory of the optimizer: slots of equal length, reused, and what a step needs.

All of it is one allocation, made at the first step. Its length follows from the two limits that a
user gives; what the arithmetic allocates for a moment while it steps a chunk counts, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT
from miles_periodic.plugins.chunked_optimizer_offload.settings import MAX_SLOTS, MIN_SLOTS

MASTER = "master"
_FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes per element of a chunk.

    slot: of one slot, as host memory stores it. shared: once for all slots, fp32 copies of moments
    that are stored in fewer bytes. passing: what the rule allocates while it steps.
    """

    slot: int
    shared: int
    passing: int

    @classmethod
    def of(cls, dtypes: Mapping[str, torch.dtype], passing: int) -> Costs:
        """dtypes: host dtype of each kind."""
        narrow = sum(dtype != torch.float32 for dtype in dtypes.values())
        return cls(sum(d.itemsize for d in dtypes.values()), narrow * _FP32_BYTES, passing)

    def num_bytes(self, num_slots: int, length: int) -> int:
        """Of a whole workspace, a step counter for each piece that a chunk can have included."""
        elements = num_slots * self.slot + self.shared + self.passing
        return elements * length + _FP32_BYTES * (length // ALIGNMENT)


def fit_slots(workspace_bytes: int, chunk_bytes: int | None, costs: Costs) -> tuple[int, int]:
    """Number of slots, and elements of each, that keep the workspace within its limit.

    chunk_bytes: of one slot; None for as many as let `MAX_SLOTS` into the workspace. Raises
    ValueError, with the least that would do, where `MIN_SLOTS` do not fit.
    """
    if chunk_bytes is None:
        needed = costs.num_bytes(MAX_SLOTS, ALIGNMENT)
        _check_room(workspace_bytes, needed, MAX_SLOTS, costs.slot * ALIGNMENT)
        return MAX_SLOTS, workspace_bytes // needed * ALIGNMENT
    length = chunk_bytes // (costs.slot * ALIGNMENT) * ALIGNMENT
    if length < ALIGNMENT:
        raise ValueError(
            f"chunk_bytes={chunk_bytes} is too small for {ALIGNMENT} elements of {costs.slot} "
            f"bytes: set it to at least {costs.slot * ALIGNMENT}."
        )
    _check_room(workspace_bytes, costs.num_bytes(MIN_SLOTS, length), MIN_SLOTS, chunk_bytes)
    fits = costs.num_bytes(MAX_SLOTS, length) <= workspace_bytes
    return (MAX_SLOTS if fits else MIN_SLOTS), length


def _check_room(workspace_bytes: int, needed: int, num_slots: int, chunk_bytes: int) -> None:
    if workspace_bytes < needed:
        raise ValueError(
            f"workspace_bytes={workspace_bytes} is too small for {num_slots} chunks of "
            f"{chunk_bytes} bytes and what their step allocates: set it to at least {needed}, or "
            "give smaller chunks."
        )


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
        shared_bytes = length * _FP32_BYTES * len(narrow)
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
