"""Which parameters a step steps, and with what gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from miles_periodic.plugins.chunked_optimizer_offload.residency import Residency


@dataclass(frozen=True, slots=True)
class Stepped:
    """One parameter of a step: its flat gradient, its group, and how many steps it took so far."""

    gradient: torch.Tensor
    group: Mapping[str, Any]
    num_steps: float


def gather(
    groups: Iterable[Mapping[str, Any]],
    residency: Residency,
    ready: Callable[[int, Mapping[str, Any]], float],
) -> dict[int, Stepped]:
    """The parameters that have a gradient, by number. Raises before anything is streamed.

    ready: makes a parameter's state what a step needs, and says how many steps it took so far.
    """
    work = {}
    for group in groups:
        for param in group["params"]:
            if param.grad is not None:
                number = residency.number_of(param)
                gradient = _flat(param.grad, param, number)
                work[number] = Stepped(gradient, group, ready(number, group))
    return work


def _flat(gradient: torch.Tensor, param: torch.Tensor, number: int) -> torch.Tensor:
    """A flat view; a copy where the gradient is not contiguous."""
    if gradient.layout != torch.strided:
        raise RuntimeError(
            f"the gradient of parameter {number} is sparse: Adam needs a dense one. Use "
            "torch.optim.SparseAdam for it."
        )
    if gradient.device != param.device or gradient.dtype != torch.float32:
        raise RuntimeError(
            f"the gradient of parameter {number} is {gradient.dtype} on {gradient.device}: "
            f"masters are stepped with torch.float32 on {param.device}. Convert it first."
        )
    return gradient.reshape(-1)
