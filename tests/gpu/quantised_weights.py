"""FP8 weights under an unmodified Megatron on a GPU: bits, memory and time, offloaded and native.

    python tests/gpu/quantised_weights.py --megatron DIR

DIR holds Megatron-core's package; Transformer Engine must be installed. Takes two minutes on an
H200. Every check trains on noise with the native optimizer and with the offloaded one and compares
each byte, scale, master and moment; then a larger model is stepped and timed. Exits with 1 where a
check fails. `--transformer-engine DIR`, an unpacked wheel, runs the checks on the CPU over the
kernels of tests/lines, which shows only that the script does. Under torchrun weights are sharded.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "lines"))

from lone_process import join
from rich.console import Console
from rich.table import Table

from miles_periodic.compat.bench.optimizer_step import fill_gradients
from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.cpu import megatron_alone
from miles_periodic.compat.cpu.fused_adam import torch_adam
from miles_periodic.compat.cpu.quantised_models import (
    RECIPES,
    next_scales,
    quantised_weights,
    raw,
)
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.tree import Tree

SLUG = "chunked-optimizer-offload"
FEATURE = f"miles_periodic.plugins.{SLUG.replace('-', '_')}.feature:ChunkedOptimizerOffload"
MIB = 1 << 20
NUM_STEPS = 20
NUM_TIMED = 5
SMALL = {"num_layers": 2, "hidden_size": 256, "num_attention_heads": 4}
#: A hidden size of 5120 as in the bench, 2.5 G parameters.
LARGE = {"num_layers": 8, "hidden_size": 5120, "num_attention_heads": 40}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--megatron", type=Path, required=True)
    options.add_argument("--transformer-engine", type=Path)
    options.add_argument("--workspace-mib", type=int, default=1024)
    chosen = options.parse_args()
    gpu = chosen.transformer_engine is None
    start(chosen, gpu)
    with contextlib.nullcontext() if gpu else cuda_on_cpu():
        failed = checks(gpu) + (timings(chosen.workspace_mib) if gpu else 0)
    dist.destroy_process_group()
    return 1 if failed else 0


def start(chosen: argparse.Namespace, gpu: bool) -> None:
    """Import Megatron with the feature's bindings, and join the other ranks."""
    sys.path.insert(0, str(chosen.megatron))
    os.environ["PYTHONPATH"] = str(chosen.megatron)
    if not gpu:
        from transformer_engine_kernels import import_transformer_engine

        megatron_alone.stand_in()
        import_transformer_engine(chosen.transformer_engine)
        dist._coalescing_manager = lambda *args, **kwargs: contextlib.nullcontext()
    workspace_bytes = (chosen.workspace_mib if gpu else 4) * MIB
    feature = FeatureReference(SLUG, FEATURE, {"workspace_bytes": workspace_bytes})
    tree = Tree.at("megatron", chosen.megatron)
    bindings = bindings_named(binding_names(SLUG, "megatron", tree))
    join(RunManifest("run", "", "", (feature,), bindings))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29511")
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        importlib.import_module("megatron.core.optimizer")
    else:
        megatron_alone.import_megatron()
    dist.init_process_group("nccl" if gpu else "gloo")


def cuda_on_cpu():
    from miles_periodic.compat.cpu.cuda_mode import CudaOnCpu

    return CudaOnCpu()


def checks(gpu: bool) -> int:
    """How many recipes and optimizers differ from the native ones."""
    failed = 0
    for recipe in RECIPES:
        for adam in ("its own Adam", "torch's AdamW"):
            began = time.perf_counter()
            try:
                with contextlib.nullcontext() if adam == "its own Adam" else torchs_adam():
                    equal(recipe, gpu)
                outcome = "ok"
            except Exception:
                traceback.print_exc()
                outcome, failed = "FAILED", failed + 1
            say(f"{outcome:<8}{recipe}, {adam} ({time.perf_counter() - began:.1f} s)")
    return failed


def torchs_adam():
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    return torch_adam(optimizer, distrib_optimizer)


def equal(recipe: str, gpu: bool) -> None:
    """Compared after each step."""
    from both_kinds import native_trainer, offloaded, same, state

    shape = {**SMALL, "use_cpu_initialization": not gpu}
    stock, ours = native_trainer(fp8_recipe=recipe, **shape), built(fp8_recipe=recipe, **shape)
    before = bytes_of(ours)
    for number in range(NUM_STEPS):
        for trained in (stock, ours):
            fill_gradients(trained.model, number)
            stepped, _, _ = trained.optimizer.step()
            assert stepped
            next_scales(trained.model)
        assert same(bytes_of(stock), bytes_of(ours)), f"bytes or scales differ in step {number}"
        one, other = ([t.cpu() for t in state(each)] for each in (stock, ours))
        assert same(one, other), f"masters or moments differ in step {number}"
    (placed,) = offloaded(ours)
    assert not same(before, bytes_of(ours)), "no weight has changed"
    assert len(placed.quantising.waves) > 0


def built(**fields):
    from miles_periodic.compat.cpu.megatron_models import trainer

    return trainer(**fields)


def bytes_of(trained) -> list[torch.Tensor]:
    parts = [part for weight in quantised_weights(trained.model) for part in raw(weight)]
    return [part.detach().clone() for part in parts]


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
        for name, build in (("native", native_trainer), ("offloaded", built)):
            found = timed(build, recipe, device)
            floor = found["parameters"] / rank.count * (16 if recipe else 12) / rate
            is_ours = name == "offloaded"
            over += is_ours and found["state"] > workspace_mib + 1
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

    trained = build(fp8_recipe=recipe, use_cpu_initialization=False, **LARGE)
    fill_gradients(trained.model, dist.get_rank())
    trained.optimizer.step()
    next_scales(trained.model)
    # From here on with the transposed bytes that the first step has made.
    besides = weight_bytes(trained)
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
    found = {
        "seconds": statistics.median(seconds[2:]),
        "parameters": sum(weight.numel() for weight in trained.model.parameters()),
        "state": (torch.cuda.memory_allocated(device) - besides) / MIB,
        "peak": max(peaks[2:]) / MIB,
        "waves": len(placed.quantising.waves) if placed and placed.quantising else "",
    }
    del trained, placed
    gc.collect()
    torch.cuda.empty_cache()
    return found


def weight_bytes(trained) -> int:
    buffers = [*trained.model.buffers, *trained.model.expert_parallel_buffers]
    tensors = [buffer.grad_data for buffer in buffers] + [buffer.param_data for buffer in buffers]
    tensors += [part for weight in quantised_weights(trained.model) for part in raw(weight)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
