"""FP8 weights under an unmodified Megatron on a GPU: bits, memory and time, offloaded and native.

    python tests/gpu/quantised_weights.py --megatron DIR

DIR holds Megatron-core's package; Transformer Engine must be installed. Takes two minutes on an
H200. Every check trains with the native optimizer and with the offloaded one and compares each
byte, scale, master and moment: on noise, then on tokens with layers that compute in FP8, dense and
with experts, where a second native run shows that runs can be compared. Then a larger model is
stepped and timed. Exits with 1 where a check fails. `--transformer-engine DIR`, an unpacked wheel,
runs the checks on noise on the CPU over the kernels of tests/lines, which shows only that the
script does. Under torchrun weights are sharded; ranks that share a GPU talk by gloo, and are not
timed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "lines"))

from lone_process import join
from quantised_timings import MIB, say, timings

from miles_periodic.compat.bench.optimizer_step import fill_gradients
from miles_periodic.compat.bindings import quantised_weights
from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.catalog import binding_names, bindings_named
from miles_periodic.compat.cpu import megatron_alone
from miles_periodic.compat.cpu.fused_adam import torch_adam
from miles_periodic.compat.cpu.megatron_models import train, trainer
from miles_periodic.compat.cpu.quantised_models import RECIPES, next_scales, raw
from miles_periodic.compat.cpu.quantised_models import quantised_weights as weights_of
from miles_periodic.compat.manifest import FeatureReference, RunManifest
from miles_periodic.compat.tree import Tree

SLUG = "chunked-optimizer-offload"
FEATURE = f"miles_periodic.plugins.{SLUG.replace('-', '_')}.feature:ChunkedOptimizerOffload"
NUM_STEPS = 20
LEARNING_RATE = 1e-3
#: So little that the small models are many waves.
CHECKED_MIB = 2
#: Clock cycles of a GPU, about 1 ms.
SLOW_CYCLES = 2_000_000
MODELS = {
    "dense": {},
    "experts": {"moe": True, "moe_grouped_gemm": True, "moe_ffn_hidden_size": 512},
}
SMALL = {"num_layers": 2, "hidden_size": 256, "num_attention_heads": 4}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    help = "the folder that holds Megatron's package megatron"
    options.add_argument("--megatron", type=Path, required=True, help=help)
    help = "an unpacked wheel, to try the script itself on the CPU"
    options.add_argument("--transformer-engine", type=Path, help=help)
    help = "of the larger model that is timed; default: %(default)s"
    options.add_argument("--workspace-mib", type=int, default=1024, help=help)
    chosen = options.parse_args()
    gpu = chosen.transformer_engine is None
    if gpu and not torch.cuda.is_available():
        options.error("there is no GPU; --transformer-engine tries the script without one")
    if not (chosen.megatron / "megatron" / "core").is_dir():
        options.error(f"{chosen.megatron} holds no megatron/core")
    if not gpu and not (chosen.transformer_engine / "transformer_engine").is_dir():
        options.error(f"{chosen.transformer_engine} holds no transformer_engine")
    start(chosen, gpu)
    with contextlib.nullcontext() if gpu else cuda_on_cpu():
        failed = checks(gpu)
        if gpu:
            failed += learning()
        if gpu and not shared_gpu():
            workspace(chosen.workspace_mib)
            failed += timings(chosen.workspace_mib)
    kernels = "the GPU's kernels" if gpu else "stand-ins on the CPU, which proves the script alone"
    say(f"{failed or 'none'} failed, by {kernels}")
    dist.destroy_process_group()
    return 1 if failed else 0


def start(chosen: argparse.Namespace, gpu: bool) -> None:
    """Import Megatron with the feature's bindings, and join the other ranks."""
    logging.getLogger("megatron").setLevel(logging.ERROR)
    sys.path.insert(0, str(chosen.megatron))
    os.environ["PYTHONPATH"] = str(chosen.megatron)
    if not gpu:
        from transformer_engine_kernels import import_transformer_engine

        megatron_alone.stand_in()
        import_transformer_engine(chosen.transformer_engine)
    feature = FeatureReference(SLUG, FEATURE, {"workspace_bytes": CHECKED_MIB * MIB})
    tree = Tree.at("megatron", chosen.megatron)
    bindings = bindings_named(binding_names(SLUG, "megatron", tree))
    join(RunManifest("run", "", "", (feature,), bindings))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29511")
    by_gloo = not gpu or shared_gpu()
    if by_gloo:
        # gloo makes one tensor of what is gathered together, and bytes would become numbers.
        dist._coalescing_manager = lambda *args, **kwargs: contextlib.nullcontext()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        importlib.import_module("megatron.core.optimizer")
    else:
        megatron_alone.import_megatron()
    dist.init_process_group("gloo" if by_gloo else "nccl")


def shared_gpu() -> bool:
    """Whether this node has more ranks than GPUs, which NCCL refuses."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()


def cuda_on_cpu():
    from miles_periodic.compat.cpu.cuda_mode import CudaOnCpu

    return CudaOnCpu()


def checks(gpu: bool) -> int:
    """How many recipes and optimizers differ from the native ones."""
    failed = 0
    changes = {"its own Adam": contextlib.nullcontext, "torch's AdamW": torchs_adam}
    if gpu:
        changes |= {"slow loads": slow_loads, "slow quantising": slow_quantising}
    for recipe in RECIPES:
        for name, change in changes.items():
            with change():
                failed += fails(f"noise, {recipe}, {name}", equal, recipe, gpu)
    return failed


def learning() -> int:
    """How many recipes and models learn otherwise than with the native optimizer."""
    from megatron.core.transformer.enums import AttnBackend

    # Fused attention would not be deterministic.
    shape = {**SMALL, "use_cpu_initialization": False, "attention_backend": AttnBackend.unfused}
    forget_attention()
    failed = sum(
        fails(f"tokens, {recipe}, {model}", learns_alike, recipe, {**shape, **fields})
        for recipe in RECIPES
        for model, fields in MODELS.items()
    )
    forget_attention()
    return failed


def forget_attention() -> None:
    """Megatron sets it for the first model and refuses another choice for the next ones."""
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)


def fails(what: str, check, *args) -> bool:
    """Whether a check raises; its outcome is printed either way."""
    began = time.perf_counter()
    try:
        check(*args)
        outcome = "ok"
    except Exception:
        # Whatever a check raises is its outcome, and the other checks still run.
        traceback.print_exc()
        outcome = "FAILED"
    say(f"{outcome:<8}{what} ({time.perf_counter() - began:.1f} s)")
    return outcome == "FAILED"


def torchs_adam():
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    return torch_adam(optimizer, distrib_optimizer)


@contextlib.contextmanager
def slow_loads():
    """Masters arrive late: what does not wait for them is quantised from older ones."""
    on_time = quantised_weights._round

    def late(*args):
        torch.cuda._sleep(SLOW_CYCLES)
        on_time(*args)

    with patch.object(quantised_weights, "_round", late):
        yield


@contextlib.contextmanager
def slow_quantising():
    """Masters are read late: what does not wait for that overwrites them."""
    on_time = quantised_weights._brought

    def late(*args):
        for wave in on_time(*args):
            torch.cuda._sleep(SLOW_CYCLES)
            yield wave

    with patch.object(quantised_weights, "_brought", late):
        yield


def workspace(num_mib: int) -> None:
    """For the optimizers that are built from here on."""
    feature = manager().get_plugin(SLUG)
    feature.settings = feature.settings.model_copy(update={"workspace_bytes": num_mib * MIB})


def equal(recipe: str, gpu: bool) -> None:
    """Compared after each step."""
    from both_kinds import native_trainer, offloaded, same, state

    shape = {**SMALL, "use_cpu_initialization": not gpu}
    stock, ours = native_trainer(fp8_recipe=recipe, **shape), trainer(fp8_recipe=recipe, **shape)
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
    assert len(placed.quantising.waves) > 2 and placed.quantising.num_rooms == 2


def learns_alike(recipe: str, shape: dict) -> None:
    from both_kinds import native_trainer, same

    stock, again = (learned(native_trainer, recipe, shape) for _ in range(2))
    ours = learned(trainer, recipe, shape)
    for number, (one, same_one, other) in enumerate(zip(stock, again, ours, strict=True)):
        assert same(one, same_one), f"the native run does not repeat itself in step {number}"
        assert same(one, other), f"loss, bytes, masters or moments differ in step {number}"
    losses = [step[0].item() for step in ours]
    assert losses[-1] < losses[0] / 2, f"nothing is learned: {losses}"


def learned(build, recipe: str, shape: dict) -> list[list[torch.Tensor]]:
    """After each step, on the CPU: the loss, every byte and scale, masters and moments."""
    from both_kinds import state
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager

    FP8GlobalStateManager.reset()
    adam = {"lr": LEARNING_RATE}
    trained = build(fp8_recipe=recipe, fp8="hybrid", optimizer=adam, **shape)
    steps = []
    for number in range(NUM_STEPS):
        (loss,) = train(trained, range(number, number + 1), rank=dist.get_rank())
        kept = [*bytes_of(trained), *state(trained)]
        steps.append([torch.tensor(loss), *(each.cpu() for each in kept)])
    return steps


def bytes_of(trained) -> list[torch.Tensor]:
    parts = [part for weight in weights_of(trained.model) for part in raw(weight)]
    return [part.detach().clone() for part in parts]


if __name__ == "__main__":
    sys.exit(main())
