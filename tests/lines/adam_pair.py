"""torch.optim.AdamW and ChunkedAdam over equal parameters, fed the same gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from miles_periodic.plugins.chunked_optimizer_offload import ChunkedAdam

#: A scalar, single elements, an empty one, some under and some over a vector of elements.
SHAPES = ((), (1,), (0, 3), (5,), (127,), (128,), (7, 33), (1000,), (65, 129))
SMALL = {"workspace_bytes": 1 << 16, "chunk_bytes": 12 << 10}


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, device: str = "cpu"
) -> list[torch.nn.Parameter]:
    draw = torch.Generator().manual_seed(7)
    return [torch.nn.Parameter(torch.randn(s, generator=draw).to(device)) for s in shapes]


def gradients(
    shapes: Sequence[tuple[int, ...]], seed: int, device: str = "cpu"
) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=draw).to(device) for s in shapes]


def assert_equal(native: torch.optim.Optimizer, chunked: ChunkedAdam) -> None:
    """Masters, moments and counters are the same bits."""
    pairs = zip(params_of(native), params_of(chunked), strict=True)
    for number, (theirs, ours) in enumerate(pairs):
        assert torch.equal(theirs.detach().cpu(), chunked.master(ours)), number
        assert list(native.state.get(theirs, {})) == list(chunked.state.get(ours, {}))
        for kind, value in native.state.get(theirs, {}).items():
            mine = chunked.state[ours][kind]
            assert value.dtype == mine.dtype and mine.device.type == "cpu"
            assert torch.equal(value.cpu(), mine), (number, kind)


def params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


class Pair:
    """options: of both. limits: of ours alone."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]] = SHAPES,
        limits: dict | None = None,
        device: str = "cpu",
        **options,
    ) -> None:
        self.shapes, self.device = shapes, device
        self.native = torch.optim.AdamW(parameters(shapes, device), **options)
        self.chunked = ChunkedAdam(parameters(shapes, device), **options, **(limits or SMALL))

    def step(self, seed: int, without: Sequence[int] = ()) -> None:
        """One step of both; parameters numbered in `without` have no gradient."""
        for optimizer in (self.native, self.chunked):
            drawn = gradients(self.shapes, seed, self.device)
            for number, param in enumerate(params_of(optimizer)):
                param.grad = None if number in without else drawn[number]
            optimizer.step()

    def assert_equal(self) -> None:
        assert_equal(self.native, self.chunked)
