"""An Adam with the state layout of the fused ones, in torch's own arithmetic.

Without Transformer Engine and Apex Megatron steps with torch's AdamW, which keeps `step` in each
parameter's state; theirs keep it in the group, and Megatron's checkpoint code is written for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.optim.adamw import adamw


class FusedAdam(torch.optim.Optimizer):
    """Decoupled Adam: `group["step"]` counts, a state holds `exp_avg` and `exp_avg_sq` only.

    Takes and ignores what the fused ones take besides. Skips parameters without a gradient, and
    counts no step for an empty group, as they do.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **ignored: Any,
    ) -> None:
        if amsgrad or not adam_w_mode or not bias_correction:
            raise ValueError("FusedAdam stands in for decoupled Adam with bias correction only")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            stepped = [p for p in group["params"] if p.grad is not None]
            states = [self._state(parameter) for parameter in stepped]
            adamw(
                stepped,
                [p.grad for p in stepped],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                # The counter that torch raises before it uses it.
                [torch.tensor(group["step"] - 1.0) for _ in stepped],
                foreach=False,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def _state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[parameter]
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        return state


def as_if_apex_were_there(optimizer: ModuleType, distributed: ModuleType) -> None:
    """Let Megatron build and checkpoint this Adam.

    optimizer, distributed: `megatron.core.optimizer` and its `distrib_optimizer`.

    Symptom: losses part after a resume, `KeyError: 'step'` when a `fully_reshardable` checkpoint is
    loaded. Trigger: in the fallback, `DistributedOptimizer.load_state_dict` gives one tensor to
    all states as their `step`, which every parameter's update then counts up, and the loading of
    that format looks for `step` in the file. Safe: on a GPU nobody trains without one of the two.
    """
    for module, name, value in _changes(optimizer, distributed):
        setattr(module, name, value)


@contextlib.contextmanager
def torch_adam(optimizer: ModuleType, distributed: ModuleType) -> Iterator[None]:
    """Inside it, Megatron falls back to torch's AdamW after all.

    What was built inside must be stepped, saved and loaded inside.
    """
    changes = _changes(optimizer, distributed)
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = torch.optim.AdamW, True
    distributed.Adam = torch.optim.Adam
    distributed.HAVE_APEX_OR_TE = distributed.USING_APEX_OPTIMIZER = False
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _changes(
    optimizer: ModuleType, distributed: ModuleType
) -> tuple[tuple[ModuleType, str, Any], ...]:
    return (
        (optimizer, "Adam", FusedAdam),
        (optimizer, "USING_PYTORCH_OPTIMIZER", False),
        (distributed, "Adam", FusedAdam),
        (distributed, "HAVE_APEX_OR_TE", True),
        (distributed, "USING_APEX_OPTIMIZER", True),
    )
