"""Scripts that real Megatron-core trees run under gloo on the CPU, and the facts they leave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bound_ranks import called_by, gate, roll_call_of

from miles_periodic.compat.cpu.environment import cpu_environment

LINES = Path(__file__).parents[1] / "lines"
LIMIT_SECONDS = 600

#: Label to the wheel that is unpacked: distribution, version, python.
TREES = {
    "0.16.0rc0": ("miles-rl", "0.0.2", "3.11"),
    "0.16.1": ("megatron-core", "0.16.1", "3.11"),
    "0.17.1": ("megatron-core", "0.17.1", "3.12"),
    "0.18.2": ("megatron-core", "0.18.2", "3.12"),
    "0.19.2": ("megatron-core", "0.19.2", "3.12"),
}


def run_ranks(
    tree: Path,
    script: str,
    folder: Path,
    *words: str,
    worlds: tuple[int, ...] = (1, 2),
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[int, list[dict]]:
    """Run `tests/lines/script` with the Megatron of `tree`, once for each of `worlds`.

    Returns the facts by world size, then by rank; where the script is one of `bound_ranks`, with
    what that rank called, by the roll call, as `called`: binding to count. Raises AssertionError
    with what the ranks wrote where one fails or the time is over; every process is ended, by the
    id of the group that was started here.
    """
    with roll_call_of(script, tree) as roll_call:
        _run(tree, script, folder, worlds, words, limit_seconds, gate(script, roll_call))
        found = {n: [_facts(folder / str(n), rank) for rank in range(n)] for n in worlds}
        if roll_call is not None:
            ranks = [rank for world in found.values() for rank in world]
            called = called_by(roll_call, [rank["pid"] for rank in ranks])
            for rank, counts in zip(ranks, called, strict=True):
                rank["called"] = counts
    return found


def _run(
    tree: Path,
    script: str,
    folder: Path,
    worlds: Sequence[int],
    words: Sequence[str],
    limit_seconds: float,
    joining: Mapping[str, str],
) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "miles_periodic.compat.cpu.megatron_alone"]
    command += [str(LINES / script), str(folder), ",".join(map(str, worlds)), *words]
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command,
        env={**os.environ, **cpu_environment(), **joining, "PYTHONPATH": path},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        written, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        written = f"not done after {limit_seconds} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    errors = [each.read_text(encoding="utf-8") for each in sorted(folder.glob("*/*.error"))]
    assert process.returncode == 0 and not errors, "\n".join([written, *errors])


def _facts(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
