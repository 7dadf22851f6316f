"""What a train rank replays: its own layers and positions, compact until a router takes them.

Which position of a rank's slice replays which row is decided by Miles's own code: it is run over
row numbers instead of routes. Padding, context-parallel and sequence-parallel slices and whatever
order a tree has are thereby its own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.route_shape import shape_of
from miles_periodic.compat.meter import note
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RankShare

logger = logging.getLogger(__name__)

KEY = "rollout_routed_experts"
#: Part of a module's path in Megatron's model whose routers are not the backbone's.
_MTP = "mtp"


def fill(wrapped, instance, args, kwargs):
    """Symptom: each rank widens, pads and slices the routes of all layers and all positions.

    Trigger: before a step's first forward pass, once per step. Takes down: the step, where an
    expert is out of range (the error names rank, layer and row) or a router is none of the
    backbone's. Safe because Miles's own code says which row goes to which position, each
    router's layer is its own number, and what a router gets is int32 on its device, -1 in
    padding, as before. Upstream: THUDM/slime#2384 (host memory), NVIDIA-NeMo/RL#3903 (layers).
    """
    call = _Fill.of(wrapped, instance, args, kwargs)
    if call.arguments["data_key"] != KEY or KEY not in call.data:
        return wrapped(*args, **kwargs)
    routes = [_as_array(rows) for rows in call.data[KEY]]
    layers = own_layers(call.models, call.arguments["replay_list"])
    micro_batches = call.rows_of_each_micro_batch(routes)
    held = [
        _held(routes, RankShare(_rank(), number, [*layers.values()], rows), call.miles_arguments)
        for number, rows in enumerate(micro_batches)
    ]
    if any(compact is None for compact in held):
        call.data[KEY] = [_wide(rows) for rows in routes]
        return wrapped(*args, **kwargs)
    _hand_out([call.arguments["replay_list"][position] for position in layers], held)
    _report(routes, held, micro_batches, len(layers))
    return None


@dataclass(frozen=True)
class _Fill:
    """One call of Miles's fill, which is a method in one tree and a function in another."""

    wrapped: Any
    arguments: dict[str, Any]
    miles_arguments: Any
    models: Any

    @classmethod
    def of(cls, wrapped: Any, instance: Any, args: tuple, kwargs: Mapping[str, Any]) -> _Fill:
        arguments = inspect.signature(wrapped).bind(*args, **kwargs).arguments
        if instance is None:
            return cls(wrapped, arguments, arguments["args"], arguments["models"])
        return cls(wrapped, arguments, instance.args, instance.model)

    @property
    def data(self) -> dict[str, Any]:
        return self.arguments["rollout_data"]

    def rows_of_each_micro_batch(self, routes: Sequence[Any]) -> list[Any]:
        """For each micro-batch int64 (positions,): the row at each position, -1 in padding."""
        import torch

        found: list[Any] = []
        numbers = torch.arange(sum(len(rows) for rows in routes))
        each = numbers.split([len(rows) for rows in routes])
        self.data[KEY] = [rows[:, None, None] for rows in each]

        def collect(replay_list: Any, rows: Any, *args: Any, **kwargs: Any) -> None:
            found.append(rows.reshape(-1).numpy())

        self.wrapped(**{**self.arguments, "register_replay_list_func": collect})
        return found


def own_layers(models: Any, replays: Sequence[Any]) -> dict[int, int]:
    """Position in `replays` to the model's layer, from 0: where its router stands, not its order.

    A router of multi-token prediction is left out: servers capture no routes of it, and its own
    layer number counts anew. Raises PeriodicError where a replay's router is not in the model.
    """
    routers = dict(_routers(models))
    layers = {}
    for position, replay in enumerate(replays):
        layer = getattr(replay, "stream_idx", None)
        if layer is not None:
            layers[position] = layer
            continue
        if id(replay) not in routers:
            raise PeriodicError(
                "A replay belongs to no router of the model.",
                feature="delta-router-replay",
                expected="a router that holds it",
                found=f"none for replay {position} of {len(replays)}",
                remedy="Take the feature out: -delta-router-replay.",
            )
        path, router = routers[id(replay)]
        if not (getattr(router, "is_mtp", False) or _MTP in path.split(".")):
            layers[position] = router.layer_number - 1
    return layers


def _routers(models: Any) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Each module that holds a replay, with its path, by the identity of what it holds."""
    for chunk in models if isinstance(models, list | tuple) else [models]:
        for path, module in chunk.named_modules():
            for value in vars(module).values():
                if hasattr(value, "top_indices_list"):
                    yield id(value), (path, module)


def _held(routes: Sequence[Any], share: RankShare, arguments: Any) -> CompactRoutes | None:
    shape = shape_of(arguments)
    own = manager().hook.routed_experts_for_training(routes=routes, share=share, shape=shape)
    return None if own is None else CompactRoutes.of(own, share.rows < 0)


@dataclass(frozen=True)
class CompactRoutes:
    """The routes of a rank's layers in one micro-batch, as narrow as they came.

    values: host tensor (layers, positions, top_k). is_padding: host tensor of bools (positions,).
    layer: the one of `values` that this is for, or None for all.
    """

    values: Any
    is_padding: Any
    layer: int | None = None

    @classmethod
    def of(cls, own: Any, is_padding: Any) -> CompactRoutes:
        import torch

        return cls(_pinned(torch.from_numpy(own)), _pinned(torch.from_numpy(is_padding)))

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.values, self.is_padding))

    @property
    def shape(self) -> tuple[int, ...]:
        """(positions, top_k): what a router gets."""
        return tuple(self.values.shape[1:])

    def to(self, device: Any) -> Any:
        """What Miles's replay asks of a tensor: int32 (positions, top_k), -1 in padding."""
        import torch

        values = self.values[self.layer].to(device, non_blocking=True).to(torch.int32)
        is_padding = self.is_padding.to(device, non_blocking=True)
        return values.masked_fill(is_padding[:, None], -1)


def _pinned(tensor: Any) -> Any:
    """A copy in the memory from which Miles copies to its device."""
    import torch

    held = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return held.copy_(tensor)


def _hand_out(replays: Sequence[Any], held: Sequence[CompactRoutes]) -> None:
    """Each router's replay gets its layer of each micro-batch, in the order of these."""
    for layer, replay in enumerate(replays):
        replay.top_indices_list.extend(
            CompactRoutes(each.values, each.is_padding, layer) for each in held
        )


def _as_array(rows: Any) -> Any:
    return rows.numpy() if hasattr(rows, "numpy") else rows


def _wide(rows: Any) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(rows.astype(np.int32))


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def _report(
    routes: Sequence[Any], held: Sequence[CompactRoutes], micro_batches: Sequence[Any], layers: int
) -> None:
    """Bytes: of the shard, held by this rank, and what Miles would hold for it as int32."""
    num_positions = sum(len(rows) for rows in micro_batches)
    top_k = routes[0].shape[2] if routes else 0
    figures = {
        "shard_bytes": sum(rows.nbytes for rows in routes),
        "held_bytes": sum(each.num_bytes for each in held),
        "stock_bytes": 4 * num_positions * layers * top_k,
        "widened_shard_bytes": 4 * sum(rows.size for rows in routes),
    }
    logger.info("routes of rank %d: %s", _rank(), figures)
    note("routes", rank=_rank(), **figures)
