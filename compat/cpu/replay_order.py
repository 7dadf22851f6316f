"""Replayed routes in the order of Megatron's padded batches.

Shape legend: B samples of a micro-batch, S padded length, L layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace
from miles_periodic.hooks.errors import PeriodicError


def position_major(routes: Any, num_samples: int) -> Any:
    """Rows [B*S, L, K] sample by sample, as rows [S*B, L, K] position by position."""
    by_sample = routes.reshape(num_samples, -1, *routes.shape[1:])
    return by_sample.transpose(0, 1).reshape(routes.shape)


def micro_batch_sizes(iterator: Any, num_micro_batches: int) -> list[int]:
    """How many samples each of the iterator's micro-batches has (Miles's DataIterator)."""
    if iterator.micro_batch_indices is not None:
        return [len(indices) for indices in iterator.micro_batch_indices[:num_micro_batches]]
    return [iterator.micro_batch_size] * num_micro_batches


def routes_by_position(actor: ModuleType) -> None:
    """Put the replayed routes of a padded micro-batch in the router's order.

    Symptom: with --qkv-format bshd and more than one sample per micro-batch the router replays
    other tokens' routes; --ci-test says "R3 mismatch tokens". Trigger:
    miles/backends/megatron_utils/actor.py:283 flattens [B, S, L, K] sample by sample, Megatron's
    router flattens [S, B, H]. Not a CPU matter, but only a CPU needs bshd: without Transformer
    Engine Megatron has no packed attention. Safe: a permutation of rows, the identity for B = 1.
    """

    def make(native: Callable[..., None]) -> Callable[..., None]:
        def fill(
            self: Any,
            data_iterator: Any,
            num_microbatches: list[int],
            rollout_data: Any,
            data_key: str,
            replay_list: Any,
            register_replay_list_func: Callable[..., None],
            if_sp_region: bool = True,
        ) -> None:
            register = register_replay_list_func
            if self.args.qkv_format == "bshd":
                sizes = micro_batch_sizes(data_iterator[0], sum(num_microbatches))
                _refuse_sequence_parallel(self.args, sizes)
                register = _reordered(register, iter(sizes))
            native(
                self,
                data_iterator,
                num_microbatches,
                rollout_data,
                data_key=data_key,
                replay_list=replay_list,
                register_replay_list_func=register,
                if_sp_region=if_sp_region,
            )

        return fill

    replace(actor, "MegatronTrainRayActor._fill_replay_data", make)


def _reordered(register: Callable[..., None], sizes: Iterator[int]) -> Callable[..., None]:
    def register_by_position(replay_list: Any, routes: Any, model: Any) -> None:
        register(replay_list, position_major(routes, next(sizes)), model)

    return register_by_position


def _refuse_sequence_parallel(args: Any, sizes: list[int]) -> None:
    if args.sequence_parallel and max(sizes) > 1:
        raise PeriodicError(
            "Replayed routes cannot be ordered under sequence parallelism with padded batches.",
            expected="--micro-batch-size 1, or no --sequence-parallel",
            found=f"micro-batches of up to {max(sizes)} samples",
            remedy="Give --micro-batch-size 1.",
        )


STAND_INS = (
    StandIn(
        name="replay-order/by-position",
        module="miles.backends.megatron_utils.actor",
        apply=routes_by_position,
        why="Padded micro-batches replay their routes in another order than the router's.",
        process="trainer",
    ),
)
