"""Real saves of random tensors, measured, in a process of its own.

python -m miles_periodic.compat.bench.checkpoint_saves FOLDER MEBIBYTES REPEATS [--as-on-a-gpu]

Prints for each save its seconds, the most host memory that it took on top of the state, and its
files. The tensors lie on the GPU where there is one. Without one, our bindings copy every tensor
before they write it, as they have to on a GPU, with --as-on-a-gpu.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

TENSOR_BYTES = 8 << 20
TENSORS_PER_BUFFER = 32
_RESET_PEAK = "5"
_PROBE_BYTES = 256 << 20


def main(argv: list[str]) -> None:
    """Save into the folder `argv[0]`, once to warm up and then as often as asked."""
    import torch

    from miles_periodic.compat.cpu.cuda_on_cpu import cuda_functions_on_cpu

    folder, mebibytes, repeats, *flags = argv
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        cuda_functions_on_cpu(torch)
    torch.distributed.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        store=torch.distributed.HashStore(),
        rank=0,
        world_size=1,
    )
    if "--as-on-a-gpu" in flags:
        _copy_everything()
    save(Path(folder), _state(TENSOR_BYTES, device))
    state = _state(int(mebibytes) << 20, device)
    print(json.dumps([save(Path(folder), state) for _ in range(int(repeats))]))


def save(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Seconds, bytes of host memory on top of the state, and number of files of one save."""
    from megatron.core import dist_checkpointing

    folder.mkdir()
    before_bytes = _reset_peak()
    began = time.perf_counter()
    dist_checkpointing.save(dict(state), str(folder))
    measured = {
        "seconds": time.perf_counter() - began,
        "host_bytes": _status("VmHWM") - before_bytes + _peak_outside_resident(),
        "files": len(list(folder.glob("*.distcp"))),
    }
    shutil.rmtree(folder)
    return measured


def _state(num_bytes: int, device: str) -> dict[str, Any]:
    """Tensors that lie in flat buffers, as a trainer's parameters and gradients do."""
    import torch
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    state: dict[str, Any] = {}
    elements = TENSOR_BYTES // 4
    num_tensors = max(1, num_bytes // TENSOR_BYTES)
    for first in range(0, num_tensors, TENSORS_PER_BUFFER):
        count = min(TENSORS_PER_BUFFER, num_tensors - first)
        flat = torch.randn(count * elements + 1, device=device)
        for n in range(count):
            part = flat[n * elements : (n + 1) * elements].view(1024, -1)
            key = f"weight.{first + n}"
            state[key] = ShardedTensor.from_rank_offsets(key, part)
    return state


def _copy_everything() -> None:
    # The adapters, imported before, go on asking where a tensor really lies.
    from miles_periodic.compat.bindings import checkpoint_save as _adapters  # noqa: F401
    from miles_periodic.compat.bindings import staging_memory

    staging_memory.lies_on_host = lambda tensor: False


def _reset_peak() -> int:
    """Forget the largest resident size so far; the resident size now, in bytes."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return _status("VmRSS")


def _peak_outside_resident() -> int:
    """Most bytes of torch's own pinned memory at once, where the resident size leaves it out."""
    import torch

    if not torch.cuda.is_available() or _pinned_is_resident():
        return 0
    return torch.cuda.host_memory_stats()["allocated_bytes.peak"]


@functools.cache
def _pinned_is_resident() -> bool:
    """Whether this system counts memory that CUDA allocated as pinned into the resident size."""
    import torch

    before_bytes = _status("VmRSS")
    probe = torch.empty(_PROBE_BYTES, dtype=torch.uint8, pin_memory=True).fill_(1)
    return _status("VmRSS") - before_bytes > probe.numel() // 2


def _status(name: str) -> int:
    """A size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(sys.argv[1:])
