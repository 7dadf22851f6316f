"""Megatron's own cross entropy on one rank, as Miles calls it, for benches to compare with."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from miles_periodic.hooks.errors import PeriodicError


def is_there() -> bool:
    """Whether a Megatron-core is installed; it is not imported."""
    return importlib.util.find_spec("megatron") is not None


def log_probs(logits: Any, targets: Any) -> Any:
    """logits (T, V) FP32, which it overwrites; targets (T,) int64: log-probabilities (T,)."""
    import torch

    try:
        from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    except ImportError as error:
        raise PeriodicError(
            f"Megatron's cross entropy cannot be imported: {error}.",
            target="megatron.core.fusions.fused_cross_entropy",
            remedy="Install megatron-core 0.16.1 to 0.19.2 or miles-rl 0.0.2.",
        ) from error
    group = torch.distributed.group.WORLD
    losses = fused_vocab_parallel_cross_entropy(logits[:, None], targets[:, None], group)
    return -losses[:, 0]


@contextmanager
def one_rank(device: str) -> Iterator[None]:
    """A process group of this process alone, for what asks for one.

    On a CPU, Megatron's kernels run as they are written: compiling them takes a C++ compiler, and
    longer than a bench.
    """
    import torch

    is_cpu = device == "cpu"
    compiling = torch.compiler.set_stance("force_eager") if is_cpu else nullcontext()
    backend = "gloo" if is_cpu else "nccl"
    with compiling, tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            backend, init_method=f"file://{folder}/meeting", rank=0, world_size=1
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()
