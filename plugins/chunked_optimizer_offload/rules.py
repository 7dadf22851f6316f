"""Whose arithmetic steps the pieces of a chunk.

A rule sees flat fp32 tensors on the device and changes them in place; it never sees host memory.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

_FP32_BYTES = 4


@dataclass(slots=True)
class StepPiece:
    """Flat tensors of one length. master and the moments are changed in place; grad is not.

    max_exp_avg_sq: None without amsgrad. step: 0-dim, the number of steps taken before this one.
    """

    master: torch.Tensor
    grad: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    max_exp_avg_sq: torch.Tensor | None
    step: torch.Tensor


class Rule(Protocol):
    """step_in_group: whether the counter is the group's ("step": int) or each parameter's own."""

    step_in_group: bool

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ValueError, naming the option, on a group that it cannot step."""

    def passing_bytes(self, group: Mapping[str, Any]) -> int:
        """Bytes per element that `step` allocates on the device for a moment, at most."""

    def counter(
        self, group: Mapping[str, Any], device: torch.device
    ) -> tuple[torch.device, torch.dtype]:
        """Where pieces' counters must be for masters on `device`, and their dtype."""

    def step(self, group: Mapping[str, Any], pieces: Sequence[StepPiece]) -> None:
        """Step pieces of one group, once. A piece may be a part of a parameter."""


class AdamWRule:
    """torch's own functional AdamW with the group's `foreach` and `fused`, as torch.optim.AdamW.

    Neither set: torch's default for the device, foreach on CUDA and a loop on the CPU.
    """

    step_in_group = False

    def check(self, group: Mapping[str, Any]) -> None:
        for option, why in (
            ("capturable", "a CUDA graph cannot hold a step whose chunks come from host memory"),
            ("differentiable", "masters in host memory are no part of an autograd graph"),
        ):
            if group.get(option):
                raise ValueError(f"{option}=True cannot be had: {why}. Leave it False.")

    def passing_bytes(self, group: Mapping[str, Any]) -> int:
        negated = _FP32_BYTES if group["maximize"] and not group["fused"] else 0
        decayed = 0 if group.get("decoupled_weight_decay", True) else _FP32_BYTES
        if group["fused"]:
            return 0
        # The loop divides a square root into a second tensor; foreach does it in place.
        return 2 * _FP32_BYTES + negated + decayed

    def counter(
        self, group: Mapping[str, Any], device: torch.device
    ) -> tuple[torch.device, torch.dtype]:
        if group["fused"]:
            return device, torch.float32
        double = torch.get_default_dtype() == torch.float64
        return torch.device("cpu"), torch.float64 if double else torch.float32

    def step(self, group: Mapping[str, Any], pieces: Sequence[StepPiece]) -> None:
        beta1, beta2 = group["betas"]
        functional = adamw if group.get("decoupled_weight_decay", True) else adam
        functional(
            [piece.master for piece in pieces],
            [piece.grad for piece in pieces],
            [piece.exp_avg for piece in pieces],
            [piece.exp_avg_sq for piece in pieces],
            [piece.max_exp_avg_sq for piece in pieces] if group["amsgrad"] else [],
            [piece.step for piece in pieces],
            foreach=group["foreach"],
            fused=group["fused"],
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )


class GroupStepRule:
    """Drives an optimizer that counts steps in its groups, such as FusedAdam of TE or Apex.

    optimizer: an instance of that class, made over any one tensor and used for nothing else; its
    groups and state are replaced for each chunk, its defaults fill in what a group does not say.
    """

    step_in_group = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        decoupled = getattr(optimizer, "use_decoupled_grad", False)
        self._gradient = "decoupled_grad" if decoupled else "grad"

    def check(self, group: Mapping[str, Any]) -> None:
        for option in ("capturable", "amsgrad", "master_weights", "differentiable"):
            if group.get(option) or getattr(self.optimizer, option, False):
                name = type(self.optimizer).__name__
                raise ValueError(
                    f"{option} of {name} cannot be had with offloaded state. Leave it False."
                )

    def passing_bytes(self, group: Mapping[str, Any]) -> int:
        return 0

    def counter(
        self, group: Mapping[str, Any], device: torch.device
    ) -> tuple[torch.device, torch.dtype]:
        return torch.device("cpu"), torch.float32

    def step(self, group: Mapping[str, Any], pieces: Sequence[StepPiece]) -> None:
        """Raises RuntimeError where the class does not count this step once in its group."""
        masters = []
        self.optimizer.state.clear()
        for piece in pieces:
            master = piece.master.detach()
            setattr(master, self._gradient, piece.grad)
            self.optimizer.state[master] = {
                "exp_avg": piece.exp_avg,
                "exp_avg_sq": piece.exp_avg_sq,
            }
            masters.append(master)
        inner: MutableMapping[str, Any] = {**self.optimizer.defaults, **group, "params": masters}
        before = inner.setdefault("step", 0)
        self.optimizer.param_groups = [inner]
        try:
            self.optimizer.step()
            self._check_stepped(inner, before, pieces, masters)
        finally:
            self.optimizer.param_groups = []
            self.optimizer.state.clear()

    def _check_stepped(
        self,
        inner: Mapping[str, Any],
        before: int,
        pieces: Sequence[StepPiece],
        masters: Sequence[torch.Tensor],
    ) -> None:
        name = type(self.optimizer).__name__
        if int(inner["step"]) != before + 1:
            raise RuntimeError(
                f"{name} left its group's step at {inner['step']} after one step from {before}: "
                "give GroupStepRule an optimizer that counts steps in its groups."
            )
        for piece, master in zip(pieces, masters, strict=True):
            state = self.optimizer.state[master]
            if state["exp_avg"] is not piece.exp_avg or state["exp_avg_sq"] is not piece.exp_avg_sq:
                raise RuntimeError(
                    f"{name} replaced its moments instead of changing them in place: "
                    "give GroupStepRule one whose moments are fp32 tensors."
                )
