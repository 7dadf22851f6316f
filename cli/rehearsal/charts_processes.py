"""The picture of reach: processes across, bindings down, a dot where one was applied."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from miles_periodic.cli.markup import Child, Markup, element, table
from miles_periodic.cli.rehearsal.charts import figure, legend, nothing_drawn
from miles_periodic.cli.rehearsal.findings import processes_finding
from miles_periodic.cli.rehearsal.quantities import count_text
from miles_periodic.cli.rehearsal.result import Process, Result

DOT = 18


@dataclass(slots=True)
class Column:
    """Processes of one role that applied the same bindings."""

    role: str
    pids: list[int] = field(default_factory=list)
    applied: frozenset[str] = frozenset()
    consulted: Counter[str] = field(default_factory=Counter)

    @property
    def heading(self) -> Markup:
        many = f" ×{len(self.pids)}" if len(self.pids) > 1 else ""
        pids = ", ".join(str(pid) for pid in self.pids[:2]) + (" …" if self.pids[2:] else "")
        return element("span", self.role + many, element("small", pids))


def processes_picture(result: Result) -> Markup:
    """Which process applied what with features on, and how often it was consulted there."""
    finding = processes_finding(result)
    processes = result.runs.on.processes if result.runs.on else ()
    columns = _columns(processes)
    if not columns:
        return nothing_drawn(finding)
    names = sorted({name for process in processes for name in process.bindings})
    rows: list[list[Child]] = [
        [element("code", name), *(_cell(column, name) for column in columns)] for name in names
    ]
    return figure(
        finding,
        "Each column is a process, or several alike; the number says how often the run "
        "consulted the binding there.",
        legend(
            ("dot-consulted", "applied and consulted"),
            ("dot-applied", "applied, never consulted"),
        ),
        table(
            "Bindings by process, features on",
            ["binding", *(column.heading for column in columns)],
            rows,
            class_="matrix",
        ),
        wide=True,
    )


def _columns(processes: tuple[Process, ...]) -> list[Column]:
    """Processes that have a binding, those of one role with the same bindings together."""
    columns: dict[tuple[str, frozenset[str]], Column] = {}
    for process in processes:
        if not process.bindings:
            continue
        key = (process.role, process.bindings)
        column = columns.setdefault(key, Column(process.role, applied=process.bindings))
        column.pids.append(process.pid)
        column.consulted.update(process.consulted)
    return list(columns.values())


def _cell(column: Column, name: str) -> Markup:
    if name not in column.applied:
        return element("span", "not applied", class_="unseen")
    count = column.consulted[name]
    radius = 3 + min(5.5, 1.5 * math.log10(count)) if count else 4
    circle = element(
        "circle",
        cx=str(DOT / 2),
        cy=str(DOT / 2),
        r=f"{radius:.1f}",
        class_="dot-consulted" if count else "dot-applied",
    )
    words = count_text(count) if count else element("span", "never consulted", class_="unseen")
    dot = element("svg", circle, width=str(DOT), height=str(DOT), aria_hidden="true")
    return element("span", dot, words, class_="dot")
