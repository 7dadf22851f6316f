"""`miles bench offload`: an optimizer step with its state in host memory against the link."""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any

import typer

from miles_periodic.cli import messages
from miles_periodic.hooks.errors import PeriodicError

LARGEST_RATIO = 1.10
MET = "met"
MIB = 1 << 20
GIB = 1 << 30
NUM_PARAMETERS = {"cuda": 4_000_000_000, "cpu": 4_000_000}
WORKSPACE_MIB = {"cuda": 1024, "cpu": 16}


class Kernel(str, enum.Enum):
    """Which of torch's AdamW kernels every contender uses."""

    foreach = "foreach"
    fused = "fused"
    loop = "loop"


class MomentDtype(str, enum.Enum):
    """How ChunkedAdam stores moments."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def offload_command(
    parameters: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Parameters in all; left out, 4 billion with a GPU and 4 million without.",
        ),
    ] = None,
    workspace_mib: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="MiB of device memory that ChunkedAdam may use; left out, 1024 with a GPU and 16 "
            "without.",
        ),
    ] = None,
    chunk_mib: Annotated[
        int | None, typer.Option(min=1, help="MiB of a chunk; left out, four fill the workspace.")
    ] = None,
    kernel: Annotated[
        Kernel, typer.Option(metavar="NAME", help="foreach, fused or loop: torch's AdamW kernel.")
    ] = Kernel.foreach,
    moment_dtype: Annotated[
        MomentDtype,
        typer.Option(metavar="DTYPE", help="float32 or bfloat16: how moments are stored."),
    ] = MomentDtype.float32,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after two untimed ones.")] = 5,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a step of ChunkedAdam against the link, and against torch's AdamW on the device.

    The floor is what moving masters and both moments in and out takes at the rate that the link
    shows in the same run with both directions busy. Over floor is a step's time in floors: 1.10 is
    the goal; the device bytes of optimizer state must stay within the workspace, and every master
    and moment must be bit-equal to torch's. Gradients are noise. Without a GPU the same schedule
    runs in plain memory, and only sizes and equality are held. Under torchrun each rank steps its
    share of the parameters on a GPU of its own. Exits with 1 where a goal is missed.
    """
    from miles_periodic.cli.bench.offload_contest import Task, this_rank
    from miles_periodic.cli.bench.table import show

    with this_rank() as rank:
        task = Task(
            parameters or NUM_PARAMETERS[rank.device.type],
            kernel.value,
            (workspace_mib or WORKSPACE_MIB[rank.device.type]) * MIB,
            chunk_mib * MIB if chunk_mib else None,
            moment_dtype.value,
            steps,
        )
        result = measure(task, rank)
        if rank.number == 0:
            show("A step of an optimizer whose state is in host memory", result, json_output)
    if result["goals"] != MET:
        raise typer.Exit(1)


def measure(task: Any, rank: Any) -> dict[str, Any]:
    """Rows per contender, the floor, and the verdict. PeriodicError on impossible limits."""
    from miles_periodic.cli.bench.offload_contest import contest

    def tell(text: str) -> None:
        if rank.number == 0:
            messages.say("bench", text)

    try:
        rate, outcomes = contest(task, rank, tell)
    except ValueError as error:
        raise PeriodicError(
            f"The workspace cannot be had: {str(error).rstrip('.')}.",
            remedy="Give a larger --workspace-mib or a smaller --chunk-mib.",
        ) from error
    floor_seconds = task.bytes_each_way() * (task.num_parameters / rank.count) / rate
    gpu = rank.device.type == "cuda"
    native, chunked = outcomes
    return {
        "rows": [_row(outcome, floor_seconds, gpu) for outcome in outcomes],
        "device": _device_name(rank),
        "parameters": task.num_parameters,
        "kernel": task.kernel,
        "moment_dtype": task.moment_dtype,
        "link_gb_s_each_way": rate / 1e9,
        "floor_ms": floor_seconds * 1e3,
        "workspace_mib": task.workspace_bytes / MIB,
        "chunks": chunked.num_chunks,
        "bit_equal": _equal(native, chunked, task),
        "goals": verdict(native, chunked, task, floor_seconds, gpu),
    }


def verdict(native: Any, chunked: Any, task: Any, floor_seconds: float, gpu: bool) -> str:
    """Which goals were missed, or that all are met."""
    found = []
    if chunked.state_bytes > task.workspace_bytes:
        found.append("optimizer state on the device is over the workspace")
    if not math.isfinite(chunked.seconds):
        found.append("ChunkedAdam does not fit on the device")
    if gpu and chunked.seconds > LARGEST_RATIO * floor_seconds:
        found.append(f"over {LARGEST_RATIO:.2f} floors")
    if _equal(native, chunked, task) is False:
        found.append("masters or moments differ from torch's")
    return ", ".join(found) or MET


def _equal(native: Any, chunked: Any, task: Any) -> bool | None:
    """None where nothing can be compared: bf16 moments, or a contender that did not fit."""
    if task.moment_dtype != "float32" or not (native.digest and chunked.digest):
        return None
    return native.digest == chunked.digest


def _row(outcome: Any, floor_seconds: float, gpu: bool) -> dict[str, Any]:
    row = {
        "optimizer": outcome.name,
        "step_ms": outcome.seconds * 1e3,
        "over_floor": outcome.seconds / floor_seconds,
        "state_on_device_mib": outcome.state_bytes / MIB,
    }
    if gpu:
        row["peak_gib"] = outcome.peak_bytes / GIB
    return row | {"first_step_s": outcome.first_seconds}


def _device_name(rank: Any) -> str:
    import torch

    gpu = rank.device.type == "cuda"
    name = torch.cuda.get_device_name(rank.device) if gpu else "CPU, plain memory"
    return f"{rank.count} x {name}" if rank.count > 1 else name
