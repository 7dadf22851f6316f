"""FP8 weights of a real Megatron, with native and with offloaded optimizer state, byte by byte.

Run by compat/cpu/megatron_alone.py; the second word is the folder of Transformer Engine's wheel.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from both_kinds import native, native_trainer, offloaded, same, shows_placeholders, state
from bound_ranks import WORKSPACE_BYTES
from offloaded_training import new_folder, refusal
from transformer_engine_kernels import import_transformer_engine

from miles_periodic.compat.cpu.megatron_alone import Rank
from miles_periodic.compat.cpu.megatron_models import Trainer, train, trainer
from miles_periodic.compat.cpu.megatron_saves import load, save
from miles_periodic.compat.cpu.quantised_models import next_scales, quantised_weights, raw

#: Of each recipe.
NUM_STEPS = {"delayed": 20, "tensorwise": 4, "blockwise": 4}


def before_import() -> None:
    import_transformer_engine(Path(sys.argv[4]))
    # gloo makes one tensor of what is gathered together, and bytes would become numbers.
    dist._coalescing_manager = lambda *args, **kwargs: contextlib.nullcontext()


def whole_state(trained: Trainer) -> list[torch.Tensor]:
    """Masters, moments and weights, quantised ones as bytes and scales, too."""
    parts = [part for weight in quantised_weights(trained.model) for part in raw(weight)]
    return state(trained) + [part.detach().clone().float() for part in parts]


def trained_on(trained: Trainer, steps: range, rank: Rank) -> list[float]:
    losses = []
    for number in steps:
        losses += train(trained, range(number, number + 1), rank=rank.rank)
        next_scales(trained.model)
    return losses


def equal_training(rank: Rank, recipe: str, num_steps: int) -> dict:
    """Both kinds over the same steps, compared half way and at the end."""
    stock, ours = native_trainer(fp8_recipe=recipe), trainer(fp8_recipe=recipe)
    (placed,) = offloaded(ours)
    before, half = bytes_of(ours), num_steps // 2
    found = [
        stepped_alike(stock, ours, steps, rank) for steps in (range(half), range(half, num_steps))
    ]
    return {
        "equal": [equal for equal, losses in found],
        "learned": found[1][1][-1] < found[0][1][0],
        "num_quantised": len(quantised_weights(ours.model)),
        "num_of_stock": len(quantised_weights(stock.model)),
        "requantised": not same(before, bytes_of(ours)),
        "placeholders": shows_placeholders(placed),
        "within_workspace": placed.optimizer.device_bytes() <= WORKSPACE_BYTES,
        "num_waves": len(placed.quantising.waves),
        "num_owned": sum(master is not None for master in masters_of(ours)),
    }


def stepped_alike(
    stock: Trainer, ours: Trainer, steps: range, rank: Rank
) -> tuple[bool, list[float]]:
    """Whether losses and all bits agree after these steps, and the losses."""
    losses = [trained_on(kind, steps, rank) for kind in (stock, ours)]
    return losses[0] == losses[1] and same(whole_state(stock), whole_state(ours)), losses[0]


def bytes_of(trained: Trainer) -> list[torch.Tensor]:
    return [raw(weight)[0].clone() for weight in quantised_weights(trained.model)]


def masters_of(trained: Trainer) -> list:
    (part,) = trained.parts
    return part._get_fp8_params_and_shard_fp32_from_fp8()[1]


def checkpoints(rank: Rank) -> dict:
    """Each kind saved, loaded into both, its weights made of its masters again, and trained on."""
    found = {}
    for kind in ("native", "offloaded"):
        saved = of_kind(kind, "tensorwise")
        trained_on(saved, range(2), rank)
        folder = new_folder(rank, f"fp8-{kind}")
        save(saved, folder, sharding="dp_reshardable")
        before = whole_state(saved)
        onwards = trained_on(saved, range(2, 4), rank)
        for other in ("native", "offloaded"):
            loaded = of_kind(other, "tensorwise", seed=11)
            with torch.no_grad():
                load(loaded, folder, sharding="dp_reshardable")
                for part in loaded.parts:
                    part._copy_main_params_to_model_params()
                loaded.model.start_param_sync(force_sync=True)
            found[f"{kind} -> {other}"] = {
                "loaded": same(before, whole_state(loaded)),
                "resumed": trained_on(loaded, range(2, 4), rank) == onwards
                and same(whole_state(saved), whole_state(loaded)),
                "placeholders": all(map(shows_placeholders, filter(None, offloaded(loaded)))),
            }
    return found


def of_kind(kind: str, recipe: str, **fields) -> Trainer:
    with native() if kind == "native" else contextlib.nullcontext():
        return trainer(fp8_recipe=recipe, **fields)


def weights_become_masters() -> dict:
    """`reload_model_params`: masters of both kinds are the dequantised weights."""
    stock, ours = (of_kind(kind, "tensorwise") for kind in ("native", "offloaded"))
    for trained in (stock, ours):
        train(trained, range(1))
    before = whole_state(ours)
    for trained in (stock, ours):
        trained.optimizer.reload_model_params()
    return {
        "equal": same(whole_state(stock), whole_state(ours)),
        "rounded": not same(before, whole_state(ours)),
    }


def facts(rank: Rank) -> dict:
    import megatron.core
    from megatron.core.transformer import torch_norm, transformer_block

    # The last norm, too, as without Transformer Engine: its own is a kernel.
    transformer_block.LayerNormImpl = torch_norm.WrappedTorchNorm
    found = {
        "version": megatron.core.__version__.partition("+")[0],
        **{recipe: equal_training(rank, recipe, steps) for recipe, steps in NUM_STEPS.items()},
        "mxfp8": refusal(fp8_recipe="delayed", optimizer={"fp8_recipe": "mxfp8"}),
    }
    if rank.world_size > 1:
        found["checkpoints"] = checkpoints(rank)
        found["weights"] = weights_become_masters()
    return found
