"""How many slots of a chunk a workspace holds, and what they cost, in the two limits of a user.

What the arithmetic allocates for a moment while it steps a chunk counts, too. No torch in here: a
command line is checked by it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT

FP32_BYTES = 4
#: Fewer could not load one chunk and drain another while a third is stepped.
MIN_SLOTS = 3
#: One more than are needed, so that a late drain does not hold up a load.
MAX_SLOTS = 4


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
    def of(cls, item_bytes: Collection[int], passing: int) -> Costs:
        """item_bytes: what an element of each kind takes in host memory."""
        narrow = sum(each < FP32_BYTES for each in item_bytes)
        return cls(sum(item_bytes), narrow * FP32_BYTES, passing)

    def num_bytes(self, num_slots: int, length: int) -> int:
        """Of a whole workspace, a step counter for each piece that a chunk can have included."""
        elements = num_slots * self.slot + self.shared + self.passing
        return elements * length + FP32_BYTES * (length // ALIGNMENT)


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
