"""The torch.cuda of a train actor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from miles_periodic.compat.cpu.stand_in import StandIn, replace

LOGICAL_MEMORY_BYTES = 16 << 30


def cuda_functions_on_cpu(torch: ModuleType) -> None:
    """Answer the device functions of `torch.cuda` for the CPU.

    Symptom: "Found no NVIDIA driver" from the first line of a train actor on. Trigger:
    miles/ray/train_actor.py:66, miles/utils/memory_utils.py:11-27,
    miles/backends/training_utils/data.py:42, miles/backends/megatron_utils/model.py:511, and
    Megatron's random number tracker, optimizer and timers. Safe: one process, one CPU, no streams;
    every function keeps its meaning (the random state of the device is the random state of the
    CPU) or reports that nothing is pending and no device memory is in use.
    """
    for target, answer in _answers(torch).items():
        replace(torch, f"cuda.{target}", lambda native, answer=answer: answer)
    replace(torch, "Tensor.record_stream", lambda native: lambda tensor, stream: None)


def _answers(torch: ModuleType) -> dict[str, Any]:
    return {**_random_state(torch), **_device(torch), **_memory(), **_streams()}


def _random_state(torch: ModuleType) -> dict[str, Any]:
    from miles_periodic.compat.cpu.cuda_mode import Generators

    def get_rng_state(device: Any = "cuda") -> Any:
        return torch.get_rng_state()

    def set_rng_state(state: Any, device: Any = "cuda") -> None:
        torch.set_rng_state(state)

    def manual_seed(seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    return {
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "random.get_rng_state": get_rng_state,
        "random.set_rng_state": set_rng_state,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "default_generators": Generators(),
        "_lazy_call": lambda callback, **kwargs: callback(),
    }


def _device(torch: ModuleType) -> dict[str, Any]:
    return {
        "current_device": lambda: torch.device("cpu"),
        "set_device": lambda *args: None,
        "synchronize": lambda *args, **kwargs: None,
        "get_device_capability": lambda *args: (8, 0),
        "is_current_stream_capturing": lambda: False,
        "nvtx.range_push": lambda *args: None,
        "nvtx.range_pop": lambda *args: None,
    }


def _memory() -> dict[str, Any]:
    return {
        "empty_cache": lambda: None,
        "mem_get_info": lambda *args: (LOGICAL_MEMORY_BYTES, LOGICAL_MEMORY_BYTES),
        "memory_allocated": lambda *args: 0,
        "memory_reserved": lambda *args: 0,
        "max_memory_allocated": lambda *args: 0,
        "reset_peak_memory_stats": lambda *args: None,
    }


def _streams() -> dict[str, Any]:
    from miles_periodic.compat.cpu.cuda_mode import Event, Stream

    return {
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *args: Stream(),
        "default_stream": lambda *args: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
    }


def tensors_on_cpu(train_actor: ModuleType) -> None:
    """Enter the tensor half in the thread that runs the train actor.

    Trigger: `device="cuda"`, `.cuda()` and `Tensor.type()` all over Miles's training code and
    Megatron (megatron/core/optimizer/distrib_optimizer.py sorts parameters by the last). It is
    entered where the actor is made, because a TorchFunctionMode belongs to one thread.
    """

    def make(native: Callable[..., None]) -> Callable[..., None]:
        def start(self: Any, *args: Any, **kwargs: Any) -> None:
            from miles_periodic.compat.cpu.cuda_mode import CudaOnCpu

            self._cuda_on_cpu = CudaOnCpu()
            self._cuda_on_cpu.__enter__()
            native(self, *args, **kwargs)

        return start

    replace(train_actor, "TrainRayActor.__init__", make)


STAND_INS = (
    StandIn(
        name="cuda-on-cpu/functions",
        module="torch",
        apply=cuda_functions_on_cpu,
        why="A train actor asks torch.cuda for devices, streams, memory and random state.",
        process="trainer",
    ),
    StandIn(
        name="cuda-on-cpu/tensors",
        module="miles.ray.train_actor",
        apply=tensors_on_cpu,
        why="Training code allocates on cuda devices by name.",
        process="trainer",
    ),
)
