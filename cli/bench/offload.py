"""`miles bench offload`: an optimizer step with its state in host memory against the link."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from miles_periodic.cli import messages
from miles_periodic.compat.bench.optimizer_step import HYBRID, NATIVE, OFFLOADED
from miles_periodic.hooks.errors import PeriodicError

LARGEST_RATIO = 1.10
LEAST_SPEEDUP = 3.0
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
    megatron: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder that holds Megatron-core's package: also step its DistributedOptimizer "
            "on the device, as HybridDeviceOptimizer and with chunked-optimizer-offload.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after two untimed ones.")] = 5,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a step whose optimizer state is in host memory against the link and torch's AdamW.

    The floor is what moving masters and both moments in and out takes at the rate that the link
    shows in the same run with both directions busy. Over floor is a step's time in floors: 1.10 is
    the goal; the device bytes of optimizer state must stay within the workspace, and every master
    and moment must be bit-equal to torch's. Gradients are noise. Without a GPU the same schedule
    runs in plain memory, and only sizes and equality are held. Under torchrun each rank steps its
    share of the parameters on a GPU of its own.

    With --megatron the same is asked of an unmodified Megatron-core whose optimizer the feature
    offloads, and to be 3 times faster than its HybridDeviceOptimizer, which needs a GPU. Exits with
    1 where a goal is missed.
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
        result = measure(task, rank, megatron)
        if rank.number == 0:
            show("A step of an optimizer whose state is in host memory", result, json_output)
    if result["goals"] != MET:
        raise typer.Exit(1)


def measure(task: Any, rank: Any, megatron: Path | None = None) -> dict[str, Any]:
    """Rows per contender, the floor, and the verdict. PeriodicError on impossible limits."""
    from miles_periodic.cli.bench.offload_contest import contest

    def tell(text: str) -> None:
        if rank.number == 0:
            messages.say("bench", text)

    # First, because pinned memory that this process has freed stays with it.
    theirs = _measure_megatron(megatron, task, rank, tell)
    try:
        rate, (native, chunked) = contest(task, rank, tell)
    except ValueError as error:
        raise PeriodicError(
            f"The workspace cannot be had: {str(error).rstrip('.')}.",
            remedy="Give a larger --workspace-mib or a smaller --chunk-mib.",
        ) from error
    gpu = rank.device.type == "cuda"
    seconds_each = task.bytes_each_way() / rank.count / rate
    floor_seconds = seconds_each * task.num_parameters
    goals = [verdict(native, chunked, task, floor_seconds, gpu)]
    rows = [_row(each.name, each, floor_seconds, gpu) for each in (native, chunked)]
    for name, outcome in theirs.items():
        theirs_floor = seconds_each * outcome.num_parameters
        rows.append(_row(f"Megatron, {name}", outcome, theirs_floor, gpu))
    if theirs:
        goals.append(megatron_verdict(theirs, task, seconds_each, gpu))
    return {
        "rows": rows,
        "device": _device_name(rank),
        "parameters": task.num_parameters,
        **_facts_of_megatron(theirs),
        "kernel": task.kernel,
        "moment_dtype": task.moment_dtype,
        "link_gb_s_each_way": rate / 1e9,
        "floor_ms": floor_seconds * 1e3,
        "workspace_mib": task.workspace_bytes / MIB,
        "chunks": chunked.num_chunks,
        "bit_equal": _equal(native, chunked, task),
        "goals": "; ".join(dict.fromkeys(g for g in goals if g != MET)) or MET,
    }


def _measure_megatron(
    folder: Path | None, task: Any, rank: Any, tell: Callable[[str], None]
) -> Mapping[str, Any]:
    if folder is None:
        return {}
    from miles_periodic.cli.bench.offload_megatron import measure_megatron

    return measure_megatron(folder, task, rank, tell)


def _facts_of_megatron(outcomes: Mapping[str, Any]) -> dict[str, Any]:
    if not outcomes:
        return {}
    native, chunked = outcomes[NATIVE], outcomes[OFFLOADED]
    facts: dict[str, Any] = {"megatron_parameters": native.num_parameters}
    if HYBRID in outcomes:
        facts["times_faster_than_hybrid"] = outcomes[HYBRID].seconds / chunked.seconds
    return facts | {"megatron_weights_equal": native.digest == chunked.digest}


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


def megatron_verdict(outcomes: Mapping[str, Any], task: Any, seconds_each: float, gpu: bool) -> str:
    """The same of Megatron's contenders. seconds_each: the floor of one parameter."""
    native, chunked = outcomes[NATIVE], outcomes[OFFLOADED]
    found = []
    if chunked.state_bytes > task.workspace_bytes:
        found.append("optimizer state on the device is over the workspace")
    if gpu and chunked.seconds > LARGEST_RATIO * seconds_each * chunked.num_parameters:
        found.append(f"over {LARGEST_RATIO:.2f} floors")
    if HYBRID in outcomes and outcomes[HYBRID].seconds < LEAST_SPEEDUP * chunked.seconds:
        found.append(f"less than {LEAST_SPEEDUP:.0f} times faster than {HYBRID}")
    if task.moment_dtype == "float32" and native.digest != chunked.digest:
        found.append("weights differ from the native step's")
    return f"under Megatron: {', '.join(found)}" if found else MET


def _equal(native: Any, chunked: Any, task: Any) -> bool | None:
    """None where nothing can be compared: bf16 moments, or a contender that did not fit."""
    if task.moment_dtype != "float32" or not (native.digest and chunked.digest):
        return None
    return native.digest == chunked.digest


def _row(name: str, outcome: Any, floor_seconds: float, gpu: bool) -> dict[str, Any]:
    row = {
        "optimizer": name,
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
