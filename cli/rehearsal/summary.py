"""The summary of a rehearsal for a terminal: the facts of the report as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from miles_periodic.cli.rehearsal.findings import (
    TIME_NOISE,
    Finding,
    packing_finding,
    prefix_finding,
    processes_finding,
    proof_finding,
    routes_finding,
    sandboxes_finding,
    saved_by_feature,
    time_finding,
    verdict_sentence,
)
from miles_periodic.cli.rehearsal.json_words import dicts_in, machine_facts, text_of
from miles_periodic.cli.rehearsal.quantities import (
    NOT_MEASURED,
    change_text,
    number_text,
    seconds_text,
    time_text,
)
from miles_periodic.cli.rehearsal.result import METRICS, Process, Result, read_result

STYLES = {"better": "green", "worse": "red", "mixed": "yellow", "same": "", "unknown": "yellow"}
DECISION_STYLES = {"native": "green", "inject": "cyan", "off": "dim", "unsupported": "red"}


def print_summary(result: dict[str, Any], console: Console) -> None:
    """Print the summary of a rehearsal's result; the verdict comes last, where people look.

    Raises pydantic.ValidationError, naming the field, where the result is none.
    """
    read = read_result(result)
    tables = (_plan(read), _processes(read), _phases(read), _training(read))
    _print_tables(console, tables)
    console.print(_left_to_the_report(read))
    _print_tables(console, (_saved(read),))
    for caution in _cautions(read):
        console.print(Text(caution, "dim"))
    _print_tables(console, (_checks(read),))
    console.print(_verdict(read))
    console.print(_facts(read))


def _print_tables(console: Console, tables: Sequence[Table]) -> None:
    for table in tables:
        if table.row_count:
            console.print()
            console.print(table)


def _verdict(result: Result) -> Text:
    sign, style = ("✓", "bold green") if result.passed else ("✗", "bold red")
    return Text(f"{sign} {verdict_sentence(result)}", style=style)


def _facts(result: Result) -> Text:
    facts = [time_text(result.created), seconds_text(result.seconds)]
    return Text(", ".join(filter(None, [*facts, *machine_facts(result.machine)])), style="dim")


def _table(title: str, *columns: str, numbers: tuple[int, ...] = ()) -> Table:
    """A table whose long cells fold instead of being cut off."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="dim",
    )
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if index in numbers else "left")
    return table


def _add(table: Table, *cells: str | Text) -> None:
    """Add a row whose strings are text: a process's title is nobody's markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _checks(result: Result) -> Table:
    table = _table("Checks", "", "check", "detail")
    for check in sorted(result.checks, key=lambda check: check.passed):
        sign = Text("✓", "green") if check.passed else Text("✗", "bold red")
        _add(table, sign, check.name, Text(check.detail, "dim"))
    return table


def _plan(result: Result) -> Table:
    table = _table("Plan", "feature", "upstream", "decision", "reason")
    for feature in dicts_in(result.plan.get("features")):
        name = text_of(feature.get("feature"))
        for decision in dicts_in(feature.get("decisions")):
            word = text_of(decision.get("decision"))
            reason = text_of(decision.get("reason"))
            if remedy := text_of(decision.get("remedy")):
                reason += f" What to do: {remedy}"
            _add(
                table,
                name,
                text_of(decision.get("upstream")),
                Text(word, DECISION_STYLES.get(word, "")),
                Text(reason, "dim"),
            )
            name = ""
    return table


def _comparisons(result: Result) -> tuple[Finding, ...]:
    return (
        routes_finding(result),
        prefix_finding(result),
        packing_finding(result),
        time_finding(result),
        proof_finding(result),
        sandboxes_finding(result),
    )


def _saved(result: Result) -> Table:
    table = _table("Features off against on", "", "off", "on", "difference", numbers=(1, 2))
    for finding in _comparisons(result):
        _add_finding(table, finding)
    for slug, finding in saved_by_feature(result).items():
        if finding is None:
            _add(table, slug, "", "", Text("A rehearsal has no measure for this feature.", "dim"))
    return table


def _add_finding(table: Table, finding: Finding) -> None:
    values = (finding.off, finding.on) if finding.measure else ("", "")
    name = Text(finding.subject)
    if finding.measure:
        name.append(f"\n{finding.measure}", "dim")
    _add(table, name, *values, Text(finding.claim, STYLES[finding.outcome]))


def _cautions(result: Result) -> list[str]:
    findings = (*_comparisons(result), processes_finding(result))
    return [f"{finding.subject}: {finding.caution}" for finding in findings if finding.caution]


def _phases(result: Result) -> Table:
    table = _table("Wall time", "phase", "off", "on", "change", numbers=(1, 2, 3))
    runs = (result.runs.off, result.runs.on)
    off, on = (run.seconds_by_phase() if run else {} for run in runs)
    for name in dict.fromkeys([*off, *on]):
        before, after = off.get(name), on.get(name)
        known = before is not None and after is not None
        change = change_text(before, after, "less", "more", TIME_NOISE) if known else NOT_MEASURED
        _add(table, name, seconds_text(before), seconds_text(after), change)
    return table


def _training(result: Result) -> Table:
    table = _table("Training steps", "step", *METRICS.values(), numbers=(1, 2, 3, 4))
    rows = [
        (step.step, run, [number_text(getattr(step, metric)) for metric in METRICS])
        for run in ("off", "on")
        if (part := getattr(result.runs, run)) and part.training
        for step in part.training.per_step
    ]
    for step, run, metrics in sorted(rows):
        _add(table, f"{step}, {run}", *metrics)
    return table


def _processes(result: Result) -> Table:
    table = _table(
        processes_finding(result).sentence, "process", "pid", "binding", "consulted", numbers=(1, 3)
    )
    for process in result.runs.on.processes if result.runs.on else ():
        _add_process(table, process)
    return table


def _add_process(table: Table, process: Process) -> None:
    role, pid = process.role, str(process.pid)
    for name in sorted(process.bindings):
        count = process.consulted.get(name, 0)
        _add(table, role, pid, name, f"{count:,}" if count else Text("never", "yellow"))
        role = pid = ""


def _left_to_the_report(result: Result) -> Text:
    """Where to read what a terminal has no room for."""
    count = len(result.stand_ins)
    return Text(
        f"{count} CPU stand-ins, on in both runs, and {len(result.notes)} notes: see --report or "
        "--json.",
        "dim",
    )
