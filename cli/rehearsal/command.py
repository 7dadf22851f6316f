"""`miles rehearse`: the options, and the order of the whole thing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from miles_periodic.cli import messages
from miles_periodic.cli.interrupts import interruptible
from miles_periodic.cli.options import Selection
from miles_periodic.cli.rehearsal.whole_file import check_writable, write_whole

DEFAULT_STEPS = 2
TERMINAL = Path("-")


def rehearse_command(
    context: typer.Context,
    steps: Annotated[
        int, typer.Option(min=1, max=20, help="Rollouts, each trained on in one step.")
    ] = DEFAULT_STEPS,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE", help="Leave this feature off in both runs. Repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the result as JSON; - for the terminal."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write one self-contained HTML page."),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep logs, checkpoints and records here."),
    ] = None,
) -> None:
    """Run the whole loop on this machine's CPU, features off and on, and compare.

    Real Miles, SGLang, Megatron and Ray train a tiny mixture-of-experts model over multi-turn
    rollouts with a tool, weights updated in place. Takes about five minutes on two cores and
    8 GB of memory; nothing is left running.
    """
    began = time.monotonic()
    for path, option in ((json_file, "--json"), (report, "--report")):
        if path is not None and path != TERMINAL:
            check_writable(path, option)
    with interruptible("everything was ended."):
        result = rehearse(context.obj, steps, without or [], work_dir, began)
    _deliver(result, json_file, report)
    raise typer.Exit(0 if result["status"] == "passed" else 1)


def rehearse(
    selection: Selection, steps: int, without: list[str], work_dir: Path | None, began: float
) -> dict[str, Any]:
    """Both runs and their comparison; PeriodicError where nothing can be started."""
    from miles_periodic.cli.launch import refuse_problems, without_idle
    from miles_periodic.cli.rehearsal.assemble import make_result
    from miles_periodic.cli.rehearsal.environment_check import check_environment
    from miles_periodic.cli.rehearsal.progress import Progress
    from miles_periodic.cli.rehearsal.workspace import workspace
    from miles_periodic.cli.selected import bindings_of, plan_for, select_features
    from miles_periodic.compat.cpu import game, tiny_model
    from miles_periodic.compat.cpu.flags import CpuRun, prompts_file

    selected = select_features(selection, default="periodic").without(without)
    check_environment()
    plan = plan_for(selected, selection, idle=selected.idle(("regular",)))
    refuse_problems(plan)
    selected = without_idle(selected, plan)
    shape = CpuRun(num_rollouts=steps, save_interval=1)
    variants = (("off", selected.none(), ()), ("on", selected, bindings_of(plan)))
    outcomes = []
    with workspace(work_dir) as space, Progress(steps) as progress:
        model = space.folder / "model"
        tiny_model.write(model)
        for name, features, bindings in variants:
            work = space.folder / name
            work.mkdir()
            game.write_prompts(prompts_file(work), shape.num_prompts)
            outcome = _run(name, features, bindings, model, work, space.ray, shape, progress)
            outcomes.append(outcome)
            if outcome.problems:
                break
        command = "periodic " + " ".join(sys.argv[1:])
        seconds = time.monotonic() - began
        return make_result(plan, outcomes, shape, command=command, seconds=seconds)


def _run(name, features, bindings, model, work, ray, shape, progress):
    from miles_periodic.cli.rehearsal.one_run import run_once

    with progress.run(name) as on_phase:
        return run_once(
            name,
            features,
            bindings,
            model=model,
            folder=work,
            ray=ray / name,
            shape=shape,
            on_phase=on_phase,
        )


def _deliver(result: dict[str, Any], json_file: Path | None, report: Path | None) -> None:
    from miles_periodic.cli.rehearsal.report import write_report
    from miles_periodic.cli.rehearsal.summary import print_summary

    text = json.dumps(result, indent=2)
    if json_file == TERMINAL:
        typer.echo(text)
    else:
        print_summary(result, Console())
        if json_file is not None:
            write_whole(json_file, text + "\n", "--json")
    if report is not None:
        write_report(result, report)
        messages.say("report", report, "dim")
