"""`miles rehearse`: the options, and the order of the whole thing."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from miles_periodic.cli import messages
from miles_periodic.cli.interrupts import interruptible
from miles_periodic.cli.options import Selection
from miles_periodic.cli.pbox.target import DEFAULT_IMAGE_DIR, ImageDir
from miles_periodic.cli.whole_file import check_writable, write_whole

if TYPE_CHECKING:
    from miles_periodic.cli.selected import Selected

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
    no_sandboxes: Annotated[
        bool,
        typer.Option("--no-sandboxes", help="Run the tool without sandboxes, runsc or not."),
    ] = False,
    image_dir: ImageDir = DEFAULT_IMAGE_DIR,
) -> None:
    """Run the whole loop on this machine's CPU, features off and on, and compare.

    Real Miles, SGLang, Megatron and Ray train a tiny mixture-of-experts model over multi-turn
    rollouts with a tool, weights updated in place. As root, with runsc installed, the tool runs
    in sandboxes of `miles pbox`. Takes about five minutes on two cores and 8 GB of memory; nothing
    is left running.
    """
    began = time.monotonic()
    for path, option in ((json_file, "--json"), (report, "--report")):
        if path is not None and path != TERMINAL:
            check_writable(path, option)
    with interruptible("everything was ended."):
        wanted = None if no_sandboxes else image_dir
        result = rehearse(context.obj, steps, without or [], work_dir, wanted, began)
    _deliver(result, json_file, report)
    raise typer.Exit(0 if result["status"] == "passed" else 1)


def rehearse(
    selection: Selection,
    steps: int,
    without: list[str],
    work_dir: Path | None,
    image_dir: Path | None,
    began: float,
) -> dict[str, Any]:
    """Both runs and their comparison; PeriodicError where nothing can be started.

    image_dir: of the sandboxes; None for none.
    """
    from miles_periodic.cli.launch import refuse_problems, without_idle
    from miles_periodic.cli.rehearsal.assemble import make_result
    from miles_periodic.cli.rehearsal.environment_check import check_environment
    from miles_periodic.cli.rehearsal.progress import Progress
    from miles_periodic.cli.rehearsal.sandboxes import sandboxes
    from miles_periodic.cli.rehearsal.workspace import workspace
    from miles_periodic.cli.selected import bindings_of, plan_for, select_features
    from miles_periodic.compat.cpu import tiny_model
    from miles_periodic.compat.cpu.flags import CpuRun

    selected = select_features(selection, default="periodic").without(without)
    check_environment()
    plan = plan_for(selected, selection, idle=selected.idle(("regular",)))
    refuse_problems(plan)
    selected = without_idle(selected, plan)
    variants = (("off", selected.none(), ()), ("on", selected, bindings_of(plan)))
    with workspace(work_dir) as space, Progress(steps) as progress:
        tiny_model.write(space.folder / "model")
        with sandboxes(image_dir, space.folder / "sandboxes.log") as boxes:
            shape = CpuRun(num_rollouts=steps, save_interval=1, tools=boxes.tools)
            outcomes = _run_each(variants, space, shape, boxes, progress)
        command = "periodic " + " ".join(sys.argv[1:])
        seconds = time.monotonic() - began
        return make_result(plan, outcomes, shape, boxes, command=command, seconds=seconds)


def _exports(selected: Selected) -> bool:
    """Whether a feature makes exports; Miles's own asks for Megatron-Bridge, and that for a GPU."""
    return any(hasattr(feature, "export_checkpoint") for feature in selected.features)


def _run_each(variants, space, shape, boxes, progress):
    """The outcomes of the runs, up to the first one that failed."""
    from miles_periodic.cli.rehearsal.one_run import run_once
    from miles_periodic.compat.cpu import game
    from miles_periodic.compat.cpu.flags import prompts_file, tools_file

    outcomes = []
    for name, features, bindings in variants:
        work = space.folder / name
        work.mkdir()
        game.write_prompts(prompts_file(work), shape.num_prompts)
        if shape.tools:
            game.write_tools(tools_file(work), shape.tools)
        where = {"model": space.folder / "model", "folder": work, "ray": space.ray / name}
        with progress.run(name) as on_phase:
            outcome = run_once(
                name, features, bindings, **where,
                shape=replace(shape, exports=_exports(features)), on_phase=on_phase,
                environment=boxes.environment,
            )  # fmt: skip
        outcome.sandboxes = boxes.count()
        outcomes.append(outcome)
        if outcome.problems:
            break
    return outcomes


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
