"""The training entry for the miles-rl wheel, which ships Miles without its train.py.

Synchronous reinforcement learning through Miles's own parts: generate, train, save, update the
weights, evaluate. Which of these happen, and when, is decided by Miles's flags.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from miles_periodic.compat.boot import member

PROGRAM = "train.py"


def main(argv: Sequence[str]) -> None:
    """Run the whole loop with Miles's command line `argv` (without a program name)."""
    from miles.utils.tracking_utils import finish_tracking

    args = parse(argv)
    try:
        asyncio.run(train(args))
    finally:
        finish_tracking()


def parse(argv: Sequence[str]) -> Any:
    """Miles's arguments; it reads them from the process, so they are put there meanwhile."""
    from miles.utils.arguments import parse_args

    with _command_line(argv):
        return parse_args()


async def train(args: Any) -> None:
    """Start the parts, bring the servers to the trainer's weights, loop, take the parts down."""
    with phase("start"):
        parts = await start(args)
    try:
        with phase("first weight update"):
            await first_weights(args, parts)
        if args.num_rollout == 0 and args.eval_interval is not None:
            await parts.rollouts.eval.remote(rollout_id=0)
        for rollout_id in range(args.start_rollout_id, args.num_rollout):
            await one_rollout(args, parts, rollout_id)
    finally:
        with phase("stop"):
            await parts.rollouts.dispose.remote()


@dataclass(frozen=True)
class Parts:
    """What Miles runs on.

    rollouts: handle of the RolloutManager. actor, critic: train groups; critic may be None.
    rollouts_per_epoch: None when the number of rollouts was given.
    """

    rollouts: Any
    actor: Any
    critic: Any
    rollouts_per_epoch: int | None


async def start(args: Any) -> Parts:
    """Placement, rollout manager with its servers, train groups; logs and trackers first.

    The weight check's preparation needs the servers, and Miles waits for it before it starts the
    trainers. Here both come up side by side, unless the servers are to be offloaded meanwhile; the
    check is still prepared before any weights move.
    """
    from miles.ray.placement_group import (
        create_placement_groups,
        create_rollout_manager,
        create_training_models,
    )
    from miles.utils.logging_utils import configure_logger
    from miles.utils.tracking_utils import init_tracking

    configure_logger()
    placement = create_placement_groups(args)
    init_tracking(args)
    side_by_side = args.check_weight_update_equal and not args.offload_rollout
    manager_args = copy(args)
    manager_args.check_weight_update_equal &= not side_by_side
    rollouts, rollouts_per_epoch = create_rollout_manager(manager_args, placement["rollout"])
    args.num_rollout = manager_args.num_rollout
    preparing = _prepare_weight_check(rollouts) if side_by_side else _nothing()
    actor, critic = await create_training_models(args, placement, rollouts)
    await preparing
    return Parts(rollouts, actor, critic, rollouts_per_epoch)


async def first_weights(args: Any, parts: Parts) -> None:
    """Give the servers the trainer's weights, and check that they have them when asked to."""
    await _onload_weights(args, parts)
    await parts.actor.update_weights()
    if args.check_weight_update_equal:
        await parts.rollouts.check_weights.remote(action="compare")
    await _onload_kv(args, parts)


async def one_rollout(args: Any, parts: Parts, rollout_id: int) -> None:
    """Generate, train, save, update the weights, evaluate."""
    if rollout_id == 0 and args.eval_interval is not None and not args.skip_eval_before_train:
        await parts.rollouts.eval.remote(rollout_id)
    with phase("generate", rollout_id):
        data = await parts.rollouts.generate.remote(rollout_id)
    await _offload_servers(args, parts)
    with phase("train", rollout_id):
        await _train_on(args, parts, rollout_id, data)
    if _is_due(args.save_interval, rollout_id, parts, last=args.num_rollout):
        with phase("save", rollout_id):
            await _save(args, parts, rollout_id)
    await _release_trainers(args, parts, rollout_id)
    await _onload_weights(args, parts)
    with phase("weight update", rollout_id):
        await parts.actor.update_weights()
    await _onload_kv(args, parts)
    if _is_due(args.eval_interval, rollout_id, parts):
        await parts.rollouts.eval.remote(rollout_id)


async def _train_on(args: Any, parts: Parts, rollout_id: int, data: Any) -> None:
    steps: list[Awaitable[Any]] = []
    if parts.critic is not None:
        steps.append(parts.critic.train(rollout_id, data))
    if _actor_trains(args, rollout_id):
        steps.append(parts.actor.train(rollout_id, data))
    await asyncio.gather(*steps)


async def _save(args: Any, parts: Parts, rollout_id: int) -> None:
    is_last = rollout_id == args.num_rollout - 1
    if _actor_trains(args, rollout_id):
        await parts.actor.save_model(rollout_id, force_sync=is_last)
    if parts.critic is not None:
        await parts.critic.save_model(rollout_id, force_sync=is_last)
    if args.rollout_global_dataset:
        await parts.rollouts.save.remote(rollout_id)


async def _release_trainers(args: Any, parts: Parts, rollout_id: int) -> None:
    if not args.offload_train:
        await parts.actor.clear_memory()
        return
    if parts.critic is not None:
        await parts.critic.offload()
    if _actor_trains(args, rollout_id):
        await parts.actor.offload()


async def _offload_servers(args: Any, parts: Parts) -> None:
    if not args.offload_rollout:
        return
    from sglang.srt import constants

    tags = [constants.GPU_MEMORY_TYPE_CUDA_GRAPH]
    if "kv_cache" in args.offload_rollout_level:
        tags.append(constants.GPU_MEMORY_TYPE_KV_CACHE)
    if "weight" in args.offload_rollout_level:
        tags.append(constants.GPU_MEMORY_TYPE_WEIGHTS)
    await parts.rollouts.offload.remote(tags=tags)


async def _onload_weights(args: Any, parts: Parts) -> None:
    if args.offload_rollout:
        await parts.rollouts.onload_weights.remote()


async def _onload_kv(args: Any, parts: Parts) -> None:
    if args.offload_rollout:
        await parts.rollouts.onload_kv.remote()


def _prepare_weight_check(rollouts: Any) -> Awaitable[Any]:
    """Snapshot the servers' weights, then scramble them: only an update can bring them back.

    Both are asked for now and run in this order, once the servers are up.
    """
    actions = ("snapshot", "reset_tensors")
    return asyncio.gather(*(rollouts.check_weights.remote(action=action) for action in actions))


async def _nothing() -> None:
    pass


def _actor_trains(args: Any, rollout_id: int) -> bool:
    return not args.use_critic or rollout_id >= args.num_critic_only_steps


def _is_due(interval: int | None, rollout_id: int, parts: Parts, last: int | None = None) -> bool:
    from miles.utils.misc import should_run_periodic_action

    return should_run_periodic_action(rollout_id, interval, parts.rollouts_per_epoch, last)


@contextmanager
def phase(name: str, step: int | None = None) -> Iterator[None]:
    """Tell the launcher, where there is one, that a part of the run begins and ends."""
    current = member()
    began = time.time()
    if current is not None:
        current.report_phase(name, step, began, -1.0)
    yield
    if current is not None:
        current.report_phase(name, step, began, time.time() - began)


@contextmanager
def _command_line(argv: Sequence[str]) -> Iterator[None]:
    held = sys.argv
    sys.argv = [PROGRAM, *argv]
    try:
        yield
    finally:
        sys.argv = held


if __name__ == "__main__":
    main(sys.argv[1:])
