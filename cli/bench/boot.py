"""`miles bench boot`: what the boot line costs a Python process, by starting many of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Annotated, Any

import typer

from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.manifest import GATE, RUN_ID, RunManifest
from miles_periodic.compat.roll_call.server import RollCallServer

#: Times what `site` does with our file at a start: open it, read it, run its line.
_BOOT_LINE_COST = """
import site, sysconfig, timeit
folder = sysconfig.get_path("purelib")
read = lambda: site.addpackage(folder, "miles_periodic_boot.pth", {folder})
print(min(timeit.repeat(read, number=1000, repeat=5)) / 1000)
"""


def boot_command(
    runs: Annotated[int, typer.Option(min=3, help="Processes of each kind, interleaved.")] = 40,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what the installed boot line adds to a Python's start, outside a run and in one."""
    from miles_periodic.cli.bench.table import show

    result = measure(runs)
    show("What the boot line costs a process", result, json_output)


def measure(runs: int) -> dict[str, Any]:
    """Milliseconds of wall time per kind of start, and of the look-up alone."""
    with RollCallServer(list(BINDINGS.values()), run_id="bench") as roll_call:
        gated = RunManifest(
            "bench", roll_call.address, roll_call.token, bindings=tuple(BINDINGS.values())
        )
        plain = {k: v for k, v in os.environ.items() if k not in (GATE, RUN_ID)}
        kinds = {"gate unset": plain, "gate set": {**plain, **gated.environment()}}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(runs):
            for kind, environment in kinds.items():
                times[kind].append(_start(environment))
        roll_call.require_joined()
    rows = [
        {"python -c pass": kind, "median_ms": statistics.median(t), "minimum_ms": min(t)}
        for kind, t in times.items()
    ]
    return {"rows": rows, "processes_each": runs, "boot_line_gate_unset_us": _boot_line() * 1e6}


def _start(environment: dict[str, str]) -> float:
    """Milliseconds of one start and end of the interpreter."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    return (time.perf_counter() - began) * 1e3


def _boot_line() -> float:
    """Seconds that reading and running the boot line takes where the gate is unset."""
    plain = {k: v for k, v in os.environ.items() if k != GATE}
    command = [sys.executable, "-c", _BOOT_LINE_COST]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True)
    return float(done.stdout)
