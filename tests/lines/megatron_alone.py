"""One rank of a real Megatron on the CPU: dense and MoE training, replay, checkpoints.

See compat/cpu/megatron_alone.py, which runs it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.cpu.megatron_models import (
    batch,
    load,
    replayed,
    routes_of_step,
    save,
    train,
    trainer,
)


def facts(rank: Rank) -> dict:
    import megatron.core

    dense = trainer()
    return {
        "version": megatron.core.__version__,
        "dense_losses": train(dense, range(3), rank=rank.rank),
        "resumes": resumes(dense, rank),
        **experts(rank),
    }


def resumes(trained, rank: Rank) -> bool:
    """Whether the same steps after a load end in the same losses."""
    folder = rank.folder / "checkpoint"
    if rank.rank == 0:
        folder.mkdir()
    dist.barrier()
    save(trained, folder, sharding="dp_reshardable")
    onwards = train(trained, range(3, 5), rank=rank.rank)
    with torch.no_grad():
        load(trained, folder, sharding="dp_reshardable")
    return train(trained, range(3, 5), rank=rank.rank) == onwards


def experts(rank: Rank) -> dict:
    """What replay makes of a MoE model whose experts are spread over the ranks."""
    moe = trainer(moe=True, expert_model_parallel_size=rank.world_size)
    tokens, positions, mask = batch(rank.rank)
    with torch.no_grad():
        own = moe.model(tokens, positions, mask, labels=tokens)
        with replayed(moe.replays, routes_of_step(0)):
            replay = moe.model(tokens, positions, mask, labels=tokens)
    return {
        "num_replays": len(moe.replays),
        "replay_changes_the_loss": not torch.equal(own, replay),
        "moe_losses": train(moe, range(2), rank=rank.rank, routes=routes_of_step),
        "num_moe_parts": len(moe.parts),
    }
