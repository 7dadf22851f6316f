"""A trainer that saves through Miles's own `save`, with our bindings in, and loads what it wrote.

See compat/cpu/megatron_alone.py, which runs it. Megatron's arguments are those that its saving
code asks for; the model and its optimizer are real.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from unittest import mock

import torch

from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.cpu.megatron_models import train, trainer
from miles_periodic.compat.cpu.megatron_saves import load, sharded_state


def facts(rank: Rank) -> dict:
    from miles.backends.megatron_utils.model import save

    trained = trainer(hidden_size=256, num_layers=4)
    train(trained, range(2))
    before = values(trained)
    with arguments(rank.folder):
        peak_bytes = saved(lambda: save(3, [trained.model], trained.optimizer, None))
    train(trained, range(2, 4))
    changed = unequal(before, values(trained))
    with torch.no_grad():
        load(trained, rank.folder / "iter_0000003", sharding="dp_reshardable")
    return {
        "changed": len(changed),
        "unequal": unequal(before, values(trained)),
        "compared": len(before),
        "peak_bytes": peak_bytes,
        "copied_bytes": sum(t.numel() * t.element_size() for t in before.values()),
        "latest": (rank.folder / "latest_checkpointed_iteration.txt").read_text(),
        "files": len(list(rank.folder.glob("iter_0000003/*.distcp"))),
    }


def arguments(folder: Path):
    """Megatron's own defaults, and what a trainer of Miles gives besides."""
    from megatron.training import arguments as of_megatron

    parser = of_megatron.add_megatron_arguments(ArgumentParser(allow_abbrev=False))
    given = parser.parse_args([])
    given.__dict__ |= {
        "save": str(folder),
        "load": str(folder),
        "ckpt_format": "torch_dist",
        "use_dist_ckpt": True,
        "use_distributed_optimizer": True,
        "ci_test": False,
    }
    return mock.patch("megatron.training.global_vars._GLOBAL_ARGS", given)


def saved(save) -> int:
    """The most host memory that the save held for copies, every tensor as if on a GPU."""
    from miles_periodic.compat.bindings import staging_memory

    memories = []
    made = staging_memory.StagingMemory.__init__

    def watched(memory, *args):
        made(memory, *args)
        memories.append(memory)

    with (
        mock.patch.object(staging_memory.StagingMemory, "__init__", watched),
        mock.patch.object(staging_memory, "lies_on_host", lambda tensor: False),
    ):
        save()
    return max(memory.peak_bytes for memory in memories)


def values(trained) -> dict:
    """Every tensor of the model and of the optimizer, copied."""
    state = sharded_state(trained, sharding="dp_reshardable", is_loading=False)
    return dict(tensors_of("", state))


def tensors_of(path, node):
    data = getattr(node, "data", None) if not isinstance(node, torch.Tensor) else node
    if isinstance(data, torch.Tensor):
        yield path, data.detach().clone()
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from tensors_of(f"{path}/{key}", value)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from tensors_of(f"{path}/{number}", value)


def unequal(before, after) -> list:
    return [key for key in before if not torch.equal(before[key], after[key])]
