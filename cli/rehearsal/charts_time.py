"""The picture of wall time: the phases of both runs, one after the other."""

from __future__ import annotations

from miles_periodic.cli.markup import Markup, table
from miles_periodic.cli.rehearsal.charts import (
    RUN_NAMES,
    RUNS,
    Scale,
    bar,
    figure,
    label,
    legend,
    nothing_drawn,
    numbers_below,
    picture,
)
from miles_periodic.cli.rehearsal.findings import TIME_NOISE, time_finding
from miles_periodic.cli.rehearsal.quantities import NOT_MEASURED, change_text, seconds_text
from miles_periodic.cli.rehearsal.result import Phase, Result, Run

ROW = 30
ROW_GAP = 10

#: Phase to class; a phase that is not here is drawn as `other`.
PHASE_CLASSES = {
    "start": "phase-start",
    "first weight update": "phase-first-update",
    "generate": "phase-generate",
    "train": "phase-train",
    "weight update": "phase-update",
    "save": "phase-save",
    "stop": "phase-stop",
}


def time_picture(result: Result) -> Markup:
    """A bar per run on one time axis, a segment per phase in the order it happened."""
    finding = time_finding(result)
    runs = {run: part for run in RUNS if (part := getattr(result.runs, run)) and part.phases}
    if not runs:
        return nothing_drawn(finding)
    names = _phase_names(runs)
    return figure(
        finding,
        "Phases in the order they happened, on one time axis for both runs.",
        legend(*((PHASE_CLASSES.get(name, "phase-other"), name) for name in names)),
        _timelines(finding.sentence, runs),
        numbers_below(_time_table(names, runs)),
        wide=True,
    )


def _phase_names(runs: dict[str, Run]) -> list[str]:
    return list(dict.fromkeys(phase.name for run in runs.values() for phase in run.phases))


def _timelines(title: str, runs: dict[str, Run]) -> Markup:
    totals = {run: sum(phase.seconds for phase in part.phases) for run, part in runs.items()}
    scale = Scale(max(totals.values()))
    shapes: list[Markup] = []
    for row, run in enumerate(RUNS):
        y = row * (ROW + ROW_GAP)
        shapes.append(label(run, y + 20, "group", dx=-34))
        if run not in runs:
            shapes.append(label(NOT_MEASURED, y + 20, "quiet"))
            continue
        shapes += _timeline(runs[run].phases, y, scale)
        end = scale(totals[run])
        shapes.append(label(seconds_text(totals[run]), y + 20, "value", x=end, dx=6))
    description = "; ".join(
        f"{RUN_NAMES[run]}: "
        + ", ".join(f"{n} {seconds_text(s)}" for n, s in part.seconds_by_phase().items())
        for run, part in runs.items()
    )
    height = 2 * (ROW + ROW_GAP)
    return picture("time", title, description, height, shapes, left=34, right=84)


def _timeline(phases: tuple[Phase, ...], y: float, scale: Scale) -> list[Markup]:
    shapes: list[Markup] = []
    x = 0.0
    for phase in phases:
        step = "" if phase.step is None else f", step {phase.step}"
        tip = f"{phase.name}{step}: {seconds_text(phase.seconds)}"
        class_ = PHASE_CLASSES.get(phase.name, "phase-other")
        shapes.append(bar(x, y, scale(phase.seconds), ROW, f"{class_} box", tip))
        x += scale(phase.seconds)
    return shapes


def _time_table(names: list[str], runs: dict[str, Run]) -> Markup:
    totals = {run: part.seconds_by_phase() for run, part in runs.items()}
    rows = []
    for name in names:
        seconds = [totals.get(run, {}).get(name) for run in RUNS]
        change = "" if None in seconds else change_text(*seconds, "less", "more", TIME_NOISE)
        rows.append([name, *(seconds_text(value) for value in seconds), change])
    head = ["phase", *RUN_NAMES.values(), "change"]
    return table("Wall time per phase", head, rows, numbers={1, 2, 3})
