"""Persistent host tensors: one flat tensor per block and kind, allocated once, pinned if asked.

A kind is "master", "exp_avg", "exp_avg_sq" or "max_exp_avg_sq". Pinned memory is asked for where
it is allocated: pinning a copy of pageable memory in each step would cost more than the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from miles_periodic.plugins.chunked_optimizer_offload.layout import Extent


class HostMemory:
    """Blocks of host memory, each with a flat tensor per kind."""

    def __init__(self, *, pinned: bool) -> None:
        self.pinned = pinned
        self.block_lengths: list[int] = []
        self._dtypes: dict[str, torch.dtype] = {}
        self._blocks: dict[str, list[torch.Tensor]] = {}

    def add_blocks(self, lengths: Iterable[int]) -> None:
        """Append blocks of that many elements, with every kind there is."""
        self.block_lengths += lengths
        for kind in self._dtypes:
            self._fill_up(kind)

    def add_kind(self, kind: str, dtype: torch.dtype) -> None:
        """Give every block a tensor of that kind, zeros; nothing where they have one."""
        self._dtypes.setdefault(kind, dtype)
        self._blocks.setdefault(kind, [])
        self._fill_up(kind)

    def dtype(self, kind: str) -> torch.dtype:
        return self._dtypes[kind]

    def slice(self, kind: str, block: int, start: int, length: int) -> torch.Tensor:
        """A flat view."""
        return self._blocks[kind][block][start : start + length]

    def view(self, kind: str, extent: Extent, shape: Sequence[int]) -> torch.Tensor:
        """A parameter's view, in its shape."""
        return self.slice(kind, extent.block, extent.start, extent.length).view(shape)

    def num_bytes(self) -> int:
        """Of all blocks and kinds; the allocator may round up."""
        return sum(b.numel() * b.element_size() for kind in self._blocks.values() for b in kind)

    def _fill_up(self, kind: str) -> None:
        blocks = self._blocks[kind]
        for length in self.block_lengths[len(blocks) :]:
            blocks.append(torch.zeros(length, dtype=self._dtypes[kind], pin_memory=self.pinned))
