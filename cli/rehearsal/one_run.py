"""One training run of a rehearsal: under the roll call, with progress, ended on every exit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_periodic.cli.launch import RAY_JOB_CONFIG, end_on_failure, manifest_of, run_environment
from miles_periodic.cli.selected import Selected
from miles_periodic.compat.cpu.environment import cpu_environment
from miles_periodic.compat.cpu.flags import CpuRun, miles_flags
from miles_periodic.compat.roll_call.server import RollCallServer
from miles_periodic.compat.run_processes import end_processes

STAND_INS = "miles_periodic.compat.cpu.catalog:STAND_INS"
TIMEOUT_SECONDS = 1200.0

Phase = dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """What one run left: its status, its phases, the roll, and where its records are."""

    name: str
    features: list[str]
    folder: Path
    status: int = 0
    seconds: float = 0.0
    phases: list[Phase] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    never_consulted: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "run.log"

    @property
    def records(self) -> Path:
        return self.folder / "meter"


def run_once(
    name: str,
    selected: Selected,
    bindings: Sequence[Any],
    *,
    model: Path,
    folder: Path,
    ray: Path,
    shape: CpuRun,
    on_phase: Callable[[Phase], None],
) -> Outcome:
    """Train the tiny model once with `selected` features; never raises for a failed run.

    folder: is made; holds the log, the meter's records and what Miles writes. ray: where Ray keeps
    its sockets, a short path. on_phase: is called
    for each phase that begins (seconds < 0) and ends, on another thread.
    """
    outcome = Outcome(name, [feature.slug for feature in selected.features], folder)
    outcome.records.mkdir(parents=True)

    def hear(phase: Phase) -> None:
        if phase["seconds"] >= 0:
            outcome.phases.append(phase)
        on_phase(phase)

    roll_call = RollCallServer(
        bindings,
        run_id=f"rehearsal-{name}-{os.getpid()}",
        notify=outcome.notices.append,
        on_phase=hear,
    )
    began = time.monotonic()
    try:
        with roll_call:
            outcome.status = _run(roll_call, selected, outcome, model, ray, shape)
            _take_roll(roll_call, outcome)
    finally:
        left = end_processes(roll_call.run_id)
        if left:
            outcome.problems.append(f"processes {left} could not be ended")
    outcome.seconds = time.monotonic() - began
    return outcome


def _run(
    roll_call: RollCallServer,
    selected: Selected,
    outcome: Outcome,
    model: Path,
    ray: Path,
    shape: CpuRun,
) -> int:
    manifest = manifest_of(
        roll_call,
        selected,
        stand_ins=STAND_INS,
        meter=str(outcome.records),
        ends_with_launcher=True,
    )
    inherited = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", RAY_JOB_CONFIG)}
    environment = run_environment(manifest, {**inherited, **cpu_environment()})
    driver = [sys.executable, "-m", "miles_periodic.compat.cpu.run"]
    command = [*driver, str(shape.num_gpus), str(ray), *miles_flags(model, outcome.folder, shape)]
    with outcome.log.open("wb") as log:
        child = subprocess.Popen(
            command,
            env=environment,
            cwd=outcome.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        roll_call.roll.driver_pid = child.pid
        end_on_failure(roll_call, child)
        try:
            status = child.wait(TIMEOUT_SECONDS)
            roll_call.hear_out(child.pid)
            return status
        except subprocess.TimeoutExpired:
            outcome.problems.append(f"it did not end within {TIMEOUT_SECONDS:.0f} seconds")
            return 124


def _take_roll(roll_call: RollCallServer, outcome: Outcome) -> None:
    roll = roll_call.roll
    outcome.processes = roll.rows()
    outcome.problems += [f"roll call: {failure}" for failure in roll.failures]
    outcome.never_consulted = roll.never_consulted()
    if outcome.status == 0:
        outcome.problems += [f"roll call: {sentence}" for sentence in roll.missing()]
    elif not roll.failures:
        outcome.problems.append(f"exit status {outcome.status}: {last_error(outcome.log)}")


def last_error(log: Path) -> str:
    """The last exception that a log names, or its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    plain = [line.strip() for line in lines if line.strip()]
    errors = [line for line in plain if _names_an_exception(line)]
    return (errors or plain or ["the log is empty"])[-1][:500]


def _names_an_exception(line: str) -> bool:
    word = line.partition("(pid=")[2].partition(")")[2].strip() if line.startswith("(") else line
    name, colon, _ = word.partition(":")
    return (
        bool(colon)
        and name.replace(".", "").isidentifier()
        and name.endswith(("Error", "Exception", "Refused", "Died", "Timeout"))
    )
