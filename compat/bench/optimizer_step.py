"""One optimizer of an unmodified Megatron-core, stepped and timed in a process of its own.

    python -m miles_periodic.compat.bench.optimizer_step TASK

TASK: JSON of a `MegatronTask`. PYTHONPATH names the tree first; the gate, if it is set, names the
bindings. Every rank runs it; each leaves JSON of a `MegatronOutcome` where its task says.
`miles bench offload --megatron` starts it. Without a GPU it runs on compat/cpu's stand-ins.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from miles_periodic.compat import boot
from miles_periodic.compat.manifest import GATE

NATIVE = "all on device"
HYBRID = "HybridDeviceOptimizer"
OFFLOADED = "chunked-optimizer-offload"
#: What differs from Megatron's own step on the device, by contender.
CONTENDERS: dict[str, dict[str, Any]] = {
    NATIVE: {},
    HYBRID: {
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
        "use_precision_aware_optimizer": True,
        "overlap_cpu_optimizer_d2h_h2d": True,
        "use_torch_optimizer_for_cpu_offload": True,
    },
    OFFLOADED: {},
}
#: Steps before the timed ones: the first allocates.
NUM_WARM_UP_STEPS = 2
#: From here on a model is as wide as large ones are.
LARGE_MODEL_PARAMETERS = 1 << 30


@dataclass(frozen=True, slots=True)
class MegatronTask:
    """contender: a key of `CONTENDERS`. rendezvous, answer: paths of files that do not exist."""

    contender: str
    num_parameters: int
    num_steps: int
    rank: int
    num_ranks: int
    rendezvous: str
    answer: str


@dataclass(frozen=True, slots=True)
class MegatronOutcome:
    """Of one rank.

    seconds: median step. num_parameters: of the model. state_bytes: on the device besides weights
    and gradients. peak_bytes: of the device after the first step; 0 without a GPU. digest: of the
    weights.
    """

    seconds: float
    first_seconds: float
    num_parameters: int
    state_bytes: int
    peak_bytes: int
    digest: int


def main(argv: list[str]) -> int:
    """Run one task and leave its answer, written whole or not at all."""
    task = MegatronTask(**json.loads(argv[0]))
    gpu = _start()
    import torch

    with _group(task, gpu):
        outcome = _run(task, torch.device("cuda", torch.cuda.current_device()) if gpu else None)
    unfinished = Path(f"{task.answer}.part")
    unfinished.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    unfinished.rename(task.answer)
    return 0


def _start() -> bool:
    """Import Megatron with the bindings of the gate; whether there is a GPU."""
    import torch

    from miles_periodic.compat.cpu import megatron_alone

    gpu = torch.cuda.is_available()
    if not gpu:
        megatron_alone.stand_in()
    if os.environ.get(GATE):
        boot.start()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        importlib.import_module("megatron.core.optimizer")
    else:
        megatron_alone.import_megatron()
    return gpu


@contextlib.contextmanager
def _group(task: MegatronTask, gpu: bool):
    import torch.distributed as dist

    os.environ.update(RANK=str(task.rank), WORLD_SIZE=str(task.num_ranks))
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        init_method=Path(task.rendezvous).as_uri(),
        rank=task.rank,
        world_size=task.num_ranks,
    )
    try:
        with contextlib.nullcontext() if gpu else _cuda_on_cpu():
            yield
    finally:
        dist.destroy_process_group()


def _cuda_on_cpu() -> Any:
    from miles_periodic.compat.cpu.cuda_mode import CudaOnCpu

    return CudaOnCpu()


def _run(task: MegatronTask, device: Any) -> MegatronOutcome:
    """device: the GPU, or None."""
    import torch

    began = time.perf_counter()
    trained = _trainer(task, device)
    fill_gradients(trained.model, task.rank)
    seconds: list[float] = []
    for number in range(NUM_WARM_UP_STEPS + task.num_steps):
        seconds.append(_timed(trained.optimizer.step, device))
        if number == 0:
            first_seconds = time.perf_counter() - began
            if device is not None:
                torch.cuda.reset_peak_memory_stats(device)
    return MegatronOutcome(
        statistics.median(seconds[NUM_WARM_UP_STEPS:]),
        first_seconds,
        sum(param.numel() for param in trained.model.parameters()),
        _state_bytes(trained, device),
        torch.cuda.max_memory_allocated(device) if device is not None else 0,
        _digest(trained.model),
    )


def _trainer(task: MegatronTask, device: Any) -> Any:
    """A dense GPT of about as many parameters, in bf16 with FP32 masters and gradients."""
    from miles_periodic.compat.cpu.megatron_models import trainer

    hidden, head = (5120, 128) if task.num_parameters >= LARGE_MODEL_PARAMETERS else (64, 16)
    layers = max(1, round(task.num_parameters / (12 * hidden * hidden)))
    return trainer(
        optimizer={"clip_grad": 0.0, "lr": 1e-4, **CONTENDERS[task.contender]},
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // head,
        use_cpu_initialization=device is None,
    )


def fill_gradients(model: Any, seed: int) -> None:
    """Noise in all of Megatron's gradient buffers, the same for the same seed."""
    import torch

    for number, buffer in enumerate([*model.buffers, *model.expert_parallel_buffers]):
        data = buffer.grad_data
        draw = torch.Generator(data.device).manual_seed(1000 * seed + number)
        data.normal_(std=1e-3, generator=draw)


def _timed(step: Any, device: Any) -> float:
    """Seconds of one step of all ranks, until the device is done with it."""
    import torch
    import torch.distributed as dist

    if device is not None:
        torch.cuda.synchronize(device)
    dist.barrier()
    began = time.perf_counter()
    stepped, _, _ = step()
    if device is not None:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    if not stepped:
        raise RuntimeError("Megatron skipped a step: its gradients were not finite")
    return seconds


def _state_bytes(trained: Any, device: Any) -> int:
    import torch

    if device is not None:
        buffers = [*trained.model.buffers, *trained.model.expert_parallel_buffers]
        model = [p.data for p in trained.model.parameters()] + [b.grad_data for b in buffers]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model}
        return torch.cuda.memory_allocated(device) - sum(storages.values())
    return sum(_without_gpu(part.optimizer) for part in trained.parts)


def _without_gpu(optimizer: Any) -> int:
    """What would be on a GPU: all of it, or what an optimizer says."""
    if hasattr(optimizer, "device_bytes"):
        return optimizer.device_bytes()
    if type(optimizer).__name__ == HYBRID:
        return 0
    masters = [param for group in optimizer.param_groups for param in group["params"]]
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    return sum(tensor.nbytes for tensor in [*masters, *state] if hasattr(tensor, "nbytes"))


def _digest(model: Any) -> int:
    """A number made of the bits of every weight and its place."""
    import torch

    total = 0
    for param in model.parameters():
        bits = param.data.reshape(-1).view(torch.int16).long()
        places = torch.arange(1, bits.numel() + 1, device=bits.device)
        total = (31 * total + int((bits * places).sum())) % ((1 << 61) - 1)
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
