"""Trainers with native and with offloaded optimizer state, and every bit that they hold."""

from __future__ import annotations

import contextlib

import pluggy
import torch

from miles_periodic.compat.bindings import optimizer_state
from miles_periodic.compat.cpu.megatron_models import Trainer, trainer
from miles_periodic.hooks.manager import build_manager


@contextlib.contextmanager
def native():
    """Inside it, Megatron keeps the optimizers that it builds."""
    ours, optimizer_state.manager = optimizer_state.manager, empty_manager
    try:
        yield
    finally:
        optimizer_state.manager = ours


def empty_manager() -> pluggy.PluginManager:
    return build_manager([])


def native_trainer(**fields) -> Trainer:
    with native():
        return trainer(**fields)


def offloaded(trained: Trainer) -> list:
    return [optimizer_state.placed_in(part) for part in trained.parts]


def state(trained: Trainer) -> list[torch.Tensor]:
    """Masters, moments and counters of either kind, weight by weight, and the weights."""
    found = []
    for part in trained.parts:
        for group in part.optimizer.param_groups:
            found.append(torch.tensor(float(group.get("step", -1))))
            for param in group["params"]:
                placed = optimizer_state.placed_in(part)
                found.append(placed.optimizer.master(param) if placed else param)
                own = part.optimizer.state[param]
                found += [own[name] for name in sorted(own)]
    found += [weight for weight in trained.model.parameters()]
    return [tensor.detach().clone().float() for tensor in found]


def same(one, other) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def shows_placeholders(placed) -> bool:
    params = [p for group in placed.optimizer.param_groups for p in group["params"]]
    return all(bool(p.isnan().all()) for p in params)
