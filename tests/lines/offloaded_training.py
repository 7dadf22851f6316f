"""A trainer of a real Megatron beside one whose optimizer state is offloaded, bit by bit.

See compat/cpu/megatron_alone.py, which runs it. Both live in one process: what is built in
`native()` is left alone. One rank finds out everything, and tests ask for it by name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from both_kinds import (
    native,
    native_trainer,
    offloaded,
    same,
    shows_placeholders,
    state,
)
from bound_ranks import WORKSPACE_BYTES

from miles_periodic.compat.cpu.fused_adam import torch_adam
from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.cpu.megatron_models import (
    Trainer,
    batch,
    replayed,
    routes_of_step,
    train,
    trainer,
)
from miles_periodic.compat.cpu.megatron_saves import load, save
from miles_periodic.hooks.errors import PeriodicError

NUM_STEPS = 20
SHARDINGS = ("dp_reshardable", "fully_reshardable")


def equal_training(rank: Rank, steps: int, routes=None, **fields) -> dict:
    """Both kinds over the same steps; whether all bits agree, and what ours held meanwhile."""
    stock = native_trainer(**fields)
    ours = trainer(**fields)
    in_forward = []
    ours.model.module.register_forward_pre_hook(
        lambda module, args: in_forward.append(all(map(shows_placeholders, offloaded(ours))))
    )
    losses = [train(t, range(steps), rank=rank.rank, routes=routes) for t in (stock, ours)]
    placed = offloaded(ours)
    return {
        "losses_equal": losses[0] == losses[1],
        "state_equal": same(state(stock), state(ours)),
        "learned": losses[0][-1] < losses[0][0],
        "num_parts": len(placed),
        "all_offloaded": all(placed) and not any(offloaded(stock)),
        "all_placeholders": all(map(shows_placeholders, placed)),
        "placeholders_in_forward": len(in_forward) == steps and all(in_forward),
        "device_bytes": max(p.optimizer.device_bytes() for p in placed),
        "num_chunks": min(p.optimizer.last_step.num_chunks for p in placed),
    }


def new_folder(rank: Rank, name: str) -> Path:
    folder = rank.folder / name
    if rank.rank == 0:
        folder.mkdir()
    dist.barrier()
    return folder


def checkpoints(rank: Rank, **fields) -> dict:
    """Each kind saved, loaded into fresh ones of both kinds, and trained on."""
    facts = {}
    for kind in ("native", "offloaded"):
        with native() if kind == "native" else contextlib.nullcontext():
            saved = trainer(**fields)
        train(saved, range(3), rank=rank.rank)
        before = state(saved)
        for sharding in SHARDINGS:
            folder = new_folder(rank, f"{kind}-{sharding}")
            save(saved, folder, sharding=sharding)
        if kind == "offloaded":
            facts["after_save"] = after_save(saved, rank)
        onwards = train(saved, range(3, 6), rank=rank.rank)
        after = state(saved)
        for sharding in SHARDINGS:
            for other in ("native", "offloaded"):
                with native() if other == "native" else contextlib.nullcontext():
                    loaded = trainer(seed=11, **fields)
                with torch.no_grad():
                    load(loaded, rank.folder / f"{kind}-{sharding}", sharding=sharding)
                facts[f"{kind} -> {other}, {sharding}"] = {
                    "loaded": same(before, state(loaded)),
                    "resumed": train(loaded, range(3, 6), rank=rank.rank) == onwards
                    and same(after, state(loaded)),
                    "placeholders": all(map(shows_placeholders, filter(None, offloaded(loaded)))),
                }
    return facts


def after_save(saved: Trainer, rank: Rank) -> dict:
    """What the optimizer holds after saves that went through, and after one that did not."""
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    (placed,) = offloaded(saved)
    released = shows_placeholders(placed)
    folder = new_folder(rank, "full")
    # Every rank fails at the same place, or some would wait for the others.
    with mock.patch.object(TorchDistSaveShardedStrategy, "save", disk_is_full):
        told = said_by(lambda: save(saved, folder, sharding="dp_reshardable"), OSError)
    limit_bytes = WORKSPACE_BYTES
    return {
        "told": told,
        "placeholders": released and shows_placeholders(placed),
        "within_workspace": placed.optimizer.device_bytes() <= limit_bytes,
    }


def disk_is_full(strategy, state, folder) -> None:
    raise OSError("the disk is full")


def background_save(rank: Rank) -> dict:
    """A save whose writer starts only after the next step has overwritten everything."""
    saved = trainer()
    train(saved, range(2), rank=rank.rank)
    before = state(saved)
    folder = new_folder(rank, "background")
    request = save(saved, folder, sharding="dp_reshardable", asynchronous=True)
    arguments = list(request.async_fn_args)
    if request.preload_fn is not None:
        arguments[1] = request.preload_fn()
    train(saved, range(2, 4), rank=rank.rank)
    request.async_fn(*arguments, **(getattr(request, "async_fn_kwargs", None) or {}))
    for finalize in request.finalize_fns:
        finalize()
    loaded = trainer(seed=11)
    with torch.no_grad():
        load(loaded, folder, sharding="dp_reshardable")
    return {"holds_what_was_saved": same(before, state(loaded))}


def weights_and_masters() -> dict:
    """Weights become masters and masters weights, in host memory and back."""
    stock, ours = native_trainer(), trainer()
    for trained in (stock, ours):
        train(trained, range(1))
        with torch.no_grad():
            for weight in trained.model.parameters():
                weight.mul_(1.5)
        trained.optimizer.reload_model_params()
    reloaded = same(state(stock), state(ours))
    with torch.no_grad():
        for weight in ours.model.parameters():
            weight.zero_()
    for part in ours.parts:
        part._copy_main_params_to_model_params()
    ours.model.start_param_sync()
    return {"reloaded": reloaded, "rebuilt": same(state(stock), state(ours))}


def broken_paths(rank: Rank) -> dict:
    """Residency after a load and a step that fail."""
    ours = trainer()
    train(ours, range(1), rank=rank.rank)
    (placed, part) = offloaded(ours)[0], ours.parts[0]
    weight = next(iter(part.model_param_group_index_map))
    with contextlib.suppress(RuntimeError), torch.no_grad():
        part._set_main_param_and_optimizer_states(weight, {"param": torch.zeros(3)})
    after_load = shows_placeholders(placed)
    write, placed.optimizer.on_stepped = placed.optimizer.on_stepped, fail
    tokens, positions, mask = batch(1)
    ours.model(tokens, positions, mask, labels=tokens).float().mean().backward()
    ours.model.finish_grad_sync()
    raised = said_by(ours.optimizer.step)
    placed.optimizer.on_stepped = write
    folder = new_folder(rank, "half-a-step")
    return {
        "placeholders_after_load": after_load,
        "step": raised,
        "placeholders_after_step": shows_placeholders(placed),
        "next_step": said_by(ours.optimizer.step),
        "save": said_by(lambda: save(ours, folder, sharding="dp_reshardable")),
        "written": [path.name for path in folder.glob("*.distcp")],
    }


def said_by(work, expected: type[Exception] = RuntimeError) -> str:
    try:
        work()
    except expected as error:
        return str(error)
    return ""


def fail(pieces) -> None:
    raise RuntimeError("on purpose")


def refused() -> dict:
    """What Megatron's own configuration asks for and cannot have."""
    return {
        "optimizer_cpu_offload": refusal(optimizer={"optimizer_cpu_offload": True}),
    }


def refusal(**fields) -> str:
    try:
        trainer(**fields)
    except PeriodicError as error:
        return str(error)
    except Exception as error:
        return f"another error: {error!r}"
    return ""


def torch_fallback(rank: Rank) -> dict:
    """What is trained without Transformer Engine and Apex, by torch's AdamW."""
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    with torch_adam(optimizer, distrib_optimizer):
        return equal_training(rank, 4)


def replay(rank: Rank) -> dict:
    """Whether a model whose experts are spread over the ranks takes the routes that it is given."""
    stock = native_trainer(moe=True, expert_model_parallel_size=rank.world_size)
    tokens, positions, mask = batch(rank.rank)
    with torch.no_grad():
        own = stock.model(tokens, positions, mask, labels=tokens)
        with replayed(stock.replays, routes_of_step(0)):
            other = stock.model(tokens, positions, mask, labels=tokens)
    return {"num_replays": len(stock.replays), "changes_the_loss": not torch.equal(own, other)}


def facts(rank: Rank) -> dict:
    import megatron.core

    full = {"params_dtype": torch.float32, "pipeline_dtype": torch.float32}
    spread = {"moe": True, "expert_model_parallel_size": rank.world_size}
    found = {
        # Some releases append the commit of the checkout that their files happen to lie in.
        "version": megatron.core.__version__.partition("+")[0],
        "replay": replay(rank),
        "dense": equal_training(rank, NUM_STEPS),
        "experts": equal_training(rank, NUM_STEPS, routes_of_step, **spread),
        "fp32": equal_training(rank, 4, bf16=False, **full),
        "checkpoints": checkpoints(rank),
        "background": background_save(rank),
        "weights": weights_and_masters(),
    }
    if rank.world_size == 1:
        found["torch_fallback"] = torch_fallback(rank)
        found["broken"] = broken_paths(rank)
        found["refused"] = refused()
    return found
