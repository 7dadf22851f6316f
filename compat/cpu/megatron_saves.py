"""How trainers of megatron_models write torch_dist checkpoints and read them, on every tree."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from miles_periodic.compat.cpu.megatron_models import Trainer


def save(
    trained: Trainer,
    folder: Path,
    *,
    sharding: str | None,
    asynchronous: bool = False,
    strategy: Any = None,
) -> Any:
    """Write model and optimizer with torch_dist into an empty folder, as a trainer does.

    sharding: value of `distrib_optim_sharding_type`, or None for the tree's default. strategy:
    how it is written, such as a TorchDistSaveShardedStrategy. Returns the request that Megatron's
    queue runs in the background, where `asynchronous`.
    """
    from megatron.core import dist_checkpointing

    extra = {"content_metadata": _metadata(sharding)}
    if asynchronous and "async_strategy" in inspect.signature(dist_checkpointing.save).parameters:
        # The default needs a package of its own.
        extra["async_strategy"] = "mcore"
    return dist_checkpointing.save(
        sharded_state(trained, sharding=sharding, is_loading=False),
        str(folder),
        async_sharded_save=asynchronous,
        sharded_strategy=strategy,
        **extra,
    )


def load(trained: Trainer, folder: Path, *, sharding: str | None) -> None:
    """Read what `save` wrote into model and optimizer."""
    from megatron.core import dist_checkpointing

    wanted = sharded_state(trained, sharding=sharding, is_loading=True)
    state = dist_checkpointing.load(wanted, str(folder))
    trained.model.module.load_state_dict(state["model"])
    trained.optimizer.load_state_dict(state["optimizer"])


def sharded_state(trained: Trainer, *, sharding: str | None, is_loading: bool) -> dict[str, Any]:
    """The sharded state dict of model and optimizer."""
    model = trained.model.module.sharded_state_dict()
    optimizer = trained.optimizer.sharded_state_dict(
        model, is_loading=is_loading, metadata=_metadata(sharding)
    )
    return {"model": model, "optimizer": optimizer}


def _metadata(sharding: str | None) -> dict[str, str] | None:
    return None if sharding is None else {"distrib_optim_sharding_type": sharding}
