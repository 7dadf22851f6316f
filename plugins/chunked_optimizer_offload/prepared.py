"""A chunk with all its views, made once for a plan and used in every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from miles_periodic.plugins.chunked_optimizer_offload.host_memory import HostMemory
from miles_periodic.plugins.chunked_optimizer_offload.schedule import Chunk
from miles_periodic.plugins.chunked_optimizer_offload.workspace import MASTER, Workspace


class SteppedPiece(NamedTuple):
    """Elements start to stop of a flattened parameter, stepped.

    master: their new fp32 values, flat, on the device; valid on the current stream until the
    callback that was given it returns.
    """

    param: torch.Tensor
    start: int
    stop: int
    master: torch.Tensor


@dataclass(slots=True)
class PreparedPiece:
    """parameter: its number. kinds: flat fp32 views on the device."""

    parameter: int
    start: int
    stop: int
    kinds: dict[str, torch.Tensor]


@dataclass(slots=True)
class PreparedChunk:
    """copies: (host, device) views of each run and kind. widened: (stored, fp32) views.

    num_bytes: what each direction moves.
    """

    copies: list[tuple[torch.Tensor, torch.Tensor]]
    widened: list[tuple[torch.Tensor, torch.Tensor]]
    pieces: list[PreparedPiece]
    num_bytes: int

    def load(self) -> None:
        for host, device in self.copies:
            device.copy_(host, non_blocking=True)

    def drain(self) -> None:
        for host, device in self.copies:
            host.copy_(device, non_blocking=True)

    def widen(self) -> None:
        """Moments as fp32, where they are stored in fewer bytes."""
        for stored, fp32 in self.widened:
            fp32.copy_(stored)

    def round_back(self) -> None:
        """Moments as they are stored: rounded to nearest, ties to even."""
        for stored, fp32 in self.widened:
            stored.copy_(fp32)

    def stepped(self, params: Sequence[torch.Tensor]) -> list[SteppedPiece]:
        return [
            SteppedPiece(params[p.parameter], p.start, p.stop, p.kinds[MASTER]) for p in self.pieces
        ]


def prepare(
    chunks: Iterable[Chunk], host: HostMemory, workspace: Workspace
) -> tuple[PreparedChunk, ...]:
    """Give every chunk its slot's views, in turn."""
    return tuple(
        _prepare(chunk, host, workspace, number % workspace.num_slots)
        for number, chunk in enumerate(chunks)
    )


def _prepare(chunk: Chunk, host: HostMemory, workspace: Workspace, slot: int) -> PreparedChunk:
    staged, stepped = workspace.staged[slot], workspace.stepped[slot]
    copies = [
        (
            host.slice(kind, run.block, run.start, run.length),
            tensor[run.slot_start : run.slot_start + run.length],
        )
        for kind, tensor in staged.items()
        for run in chunk.runs
    ]
    pieces = [
        PreparedPiece(
            piece.parameter,
            piece.start,
            piece.stop,
            {k: t[piece.slot_start :][: piece.stop - piece.start] for k, t in stepped.items()},
        )
        for piece in chunk.pieces
    ]
    widened = [(staged[k][: chunk.length], stepped[k][: chunk.length]) for k in workspace.narrow]
    return PreparedChunk(copies, widened, pieces, sum(h.nbytes for h, _ in copies))
