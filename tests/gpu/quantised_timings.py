"""A model whose weights are FP8, stepped and timed with native and with offloaded state."""

from __future__ import annotations

import gc
import statistics
import time

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from miles_periodic.compat.bench.optimizer_step import fill_gradients
from miles_periodic.compat.cpu.megatron_models import trainer
from miles_periodic.compat.cpu.quantised_models import (
    RECIPES,
    next_scales,
    quantised_weights,
    raw,
)

MIB = 1 << 20
NUM_TIMED = 5
MOST_LEFT_BYTES = 1 << 30
#: Scales that Transformer Engine keeps of the larger model's weights, also with native state.
SCALES_MIB = 4
#: A hidden size of 5120 as in the bench, 2.5 G parameters.
LARGE = {"num_layers": 8, "hidden_size": 5120, "num_attention_heads": 40}


def timings(workspace_mib: int) -> int:
    """A table of the larger model; how many offloaded steps are over their workspace."""
    from both_kinds import native_trainer

    from miles_periodic.cli.bench.offload_contest import Rank, link_rate

    device = torch.device("cuda", torch.cuda.current_device())
    rank = Rank(dist.get_rank(), dist.get_world_size(), device)
    rate = link_rate(rank)
    table = Table("weights", "optimizer", "step ms", "over floor", "state MiB", "peak MiB", "waves")
    over = 0
    for recipe in ("", *RECIPES):
        for name, build in (("native", native_trainer), ("offloaded", trainer)):
            found = timed(build, recipe, device)
            floor = found["parameters"] / rank.count * (16 if recipe else 12) / rate
            is_ours = name == "offloaded"
            over += is_ours and found["state"] > workspace_mib + SCALES_MIB
            table.add_row(
                recipe or "bf16",
                name,
                f"{found['seconds'] * 1e3:.1f}",
                f"{found['seconds'] / floor:.2f}" if is_ours else "",
                f"{found['state']:.0f}",
                f"{found['peak']:.0f}",
                str(found["waves"]),
            )
    if rank.number == 0:
        Console(width=110).print(table)
        say(f"link {rate / 1e9:.1f} GB/s each way; floors of 12 bytes in, 16 with FP8 weights")
    return over


def timed(build, recipe: str, device: torch.device) -> dict:
    """Median step, and MiB on the device besides weights and gradients, held and at most."""
    from both_kinds import offloaded

    before = left_on(device)
    trained = build(fp8_recipe=recipe, use_cpu_initialization=False, **LARGE)
    fill_gradients(trained.model, dist.get_rank())
    trained.optimizer.step()
    next_scales(trained.model)
    # From here on with the transposed bytes that the first step has made.
    besides = before + weight_bytes(trained)
    seconds, peaks = [], []
    for _ in range(2 + NUM_TIMED):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        dist.barrier()
        began = time.perf_counter()
        trained.optimizer.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        peaks.append(torch.cuda.max_memory_allocated(device) - besides)
        next_scales(trained.model)
    (placed,) = offloaded(trained)
    return {
        "seconds": statistics.median(seconds[2:]),
        "parameters": sum(weight.numel() for weight in trained.model.parameters()),
        "state": (torch.cuda.memory_allocated(device) - besides) / MIB,
        "peak": max(peaks[2:]) / MIB,
        "waves": len(placed.quantising.waves) if placed and placed.quantising else "",
    }


def left_on(device: torch.device) -> int:
    """Bytes that libraries hold, once all models are gone.

    A quantised weight's cycles take more than one collection.
    """
    for _ in range(3):
        gc.collect()
    torch.cuda.empty_cache()
    left_bytes = torch.cuda.memory_allocated(device)
    if left_bytes > MOST_LEFT_BYTES:
        raise RuntimeError(f"{left_bytes / MIB:.0f} MiB of earlier models are on the device")
    return left_bytes


def weight_bytes(trained) -> int:
    buffers = [*trained.model.buffers, *trained.model.expert_parallel_buffers]
    tensors = [buffer.grad_data for buffer in buffers] + [buffer.param_data for buffer in buffers]
    tensors += [part for weight in quantised_weights(trained.model) for part in raw(weight)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)
