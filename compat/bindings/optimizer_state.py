"""Megatron's distributed optimizer with an offloaded optimizer inside.

Where the masters are asked for, they are handed out from host memory, and Megatron's own code
does the rest. What a step has written is not written again. `model_param`: a weight of the model;
its shard has one master, FP32 and flat, in `optimizer.param_groups`.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.offloaded_weights import (
    make_room,
    masters_of_weights,
    refuse,
)
from miles_periodic.compat.bindings.quantised_weights import Quantising, quantising
from miles_periodic.hooks.values import OffloadedOptimizer

#: Attribute of a DistributedOptimizer whose state is offloaded.
_PLACED = "_miles_periodic_offloaded"
_MASTER_GROUPS = ("shard_fp32_from_float16_groups", "shard_fp32_groups")
_MODEL_GROUPS = ("model_float16_groups", "model_fp32_groups")


@dataclass(eq=False)
class Placed:
    """An offloaded optimizer in its place inside a DistributedOptimizer.

    weights: parameter of the optimizer to the shard of a weight that is made from it, flat, or
    None for a quantised weight. quantising: how those are made, None without any.

    own_masters: parameters that stand for FP32 weights. written: parameters whose weights the last
    step has written.
    """

    optimizer: OffloadedOptimizer
    weights: dict[Any, Any]
    own_masters: frozenset[Any]
    quantising: Quantising | None = None
    written: set[Any] = field(default_factory=set)

    def storages(self) -> set[int]:
        """Addresses of the host memory that holds masters and moments, settled."""
        tensors = [self.optimizer.master(param) for param in self.weights]
        tensors += [each for state in self.optimizer.state.values() for each in state.values()]
        return {t.untyped_storage().data_ptr() for t in tensors if hasattr(t, "untyped_storage")}

    def write(self, pieces: Sequence[Any]) -> None:
        """Round stepped masters into the weights while they are on the device.

        Quantised weights wait for the end of the step: their scales are those of whole weights.
        """
        for piece in pieces:
            weight = self.weights[piece.param]
            if weight is None:
                continue
            weight[piece.start : piece.stop].copy_(piece.master)
            if piece.stop == weight.numel():
                self.written.add(piece.param)


#: Every offloaded optimizer of this process.
_ALL: weakref.WeakSet[Placed] = weakref.WeakSet()


def attach(wrapped, instance, args, kwargs):
    """Symptom: masters and moments of a trainer stay on the GPU from the first step on.

    Trigger: a DistributedOptimizer was built. Takes down: the start of the trainer, where its
    configuration cannot be had. Safe because Megatron reaches its optimizer through this one
    attribute, by the interface of torch, and groups keep their identity. Upstream:
    NVIDIA/Megatron-LM#6244, #6544.
    """
    wrapped(*args, **kwargs)
    if instance.is_stub_optimizer:
        return
    refuse(instance)
    weights = masters_of_weights(instance)
    offloaded = manager().hook.offloaded_optimizer(optimizer=instance.optimizer)
    if offloaded is None:
        return
    placed = Placed(offloaded, weights, frozenset(_flat(instance.shard_fp32_groups)))
    if getattr(instance.ddp_config, "fp8_param_gather", False):
        make_room(offloaded, (param for param, weight in weights.items() if weight is None))
        placed.quantising = Quantising(offloaded)
    offloaded.on_stepped = placed.write
    _ALL.add(placed)
    instance.optimizer = offloaded
    setattr(instance, _PLACED, placed)


def write_weights(wrapped, instance, args, kwargs):
    """Symptom: placeholders are rounded into the model's weights after a step.

    Trigger: `_copy_main_params_to_model_params`, in a step and where weights are rebuilt. Takes
    down: nothing. Safe because the copy is Megatron's own: of what this step has not written
    while it was on the device, from the masters in host memory; quantised weights are made by
    `quantise_in_waves`. Upstream: as `attach`.
    """
    placed = placed_in(instance)
    if placed is None:
        return wrapped(*args, **kwargs)
    written, placed.written = placed.written, set()
    with _masters_shown(instance, placed, without=written), quantising(placed.quantising):
        return wrapped(*args, **kwargs)


def read_weights(wrapped, instance, args, kwargs):
    """Symptom: "more than one element of the written-to tensor" when weights become masters.

    Trigger: `_copy_model_params_to_main_params`, by `reload_model_params` after weights were
    loaded without an optimizer. Takes down: nothing. Safe because the copy is Megatron's own,
    into the masters in host memory. Upstream: as `attach`.
    """
    placed = placed_in(instance)
    if placed is None:
        return wrapped(*args, **kwargs)
    placed.written.clear()
    with _masters_shown(instance, placed):
        return wrapped(*args, **kwargs)


def state_of_weight(wrapped, instance, args, kwargs):
    """Symptom: checkpoints hold NaN where masters belong.

    Trigger: any sharded state dict; all formats ask for a weight's state here. Takes down:
    nothing. Safe because the answer differs in where the master is. Upstream: as `attach`.
    """
    tensors = wrapped(*args, **kwargs)
    placed = placed_in(instance)
    if placed is not None:
        tensors["param"] = placed.optimizer.master(tensors["param"])
    return tensors


def load_state_of_weight(wrapped, instance, args, kwargs):
    """Symptom: "more than one element of the written-to tensor" when a checkpoint is loaded.

    Trigger: any checkpoint's state is put in place, weight by weight. Takes down: nothing. Safe
    because Megatron's own copy runs with this one master on the device, and the residency ends
    with it, however it ends. Upstream: as `attach`.
    """
    placed = placed_in(instance)
    if placed is None:
        return wrapped(*args, **kwargs)
    # What a step that broke off had written is not what its masters are now.
    placed.written.clear()
    (model_param, _) = (*args, *kwargs.values())
    group, order = instance.model_param_group_index_map[model_param]
    param = placed.optimizer.param_groups[group]["params"][order]
    with placed.optimizer.resident([param]):
        wrapped(*args, **kwargs)
        if param in placed.own_masters:
            placed.weights[param].copy_(param)


def placed_in(instance: Any) -> Placed | None:
    """The offloaded optimizer inside a DistributedOptimizer, or None."""
    return vars(instance).get(_PLACED)


def host_storages() -> set[int]:
    """Addresses of the host memory of all offloaded state in this process."""
    return {address for placed in _ALL for address in placed.storages()}


@contextmanager
def _masters_shown(instance: Any, placed: Placed, without: Collection[Any] = ()) -> Iterator[None]:
    """The instance's pairs of masters and weights with the masters of host memory in them.

    without: parameters whose pairs are left out.
    """
    before = {name: getattr(instance, name) for name in (*_MASTER_GROUPS, *_MODEL_GROUPS)}
    try:
        for masters, models in zip(_MASTER_GROUPS, _MODEL_GROUPS, strict=True):
            pairs = [
                [
                    (param, model)
                    for param, model in zip(*group, strict=True)
                    if param not in without
                ]
                for group in zip(before[masters], before[models], strict=True)
            ]
            shown = [[placed.optimizer.master(param) for param, _ in group] for group in pairs]
            setattr(instance, masters, shown)
            setattr(instance, models, [[model for _, model in group] for group in pairs])
        yield
    finally:
        for name, groups in before.items():
            setattr(instance, name, groups)


def _flat(groups: Sequence[Sequence[Any]]) -> Iterator[Any]:
    return (param for group in groups for param in group)
