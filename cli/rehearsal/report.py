"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from miles_periodic.cli.markup import Markup, element, own_text
from miles_periodic.cli.rehearsal import sections, sections_plan
from miles_periodic.cli.rehearsal.findings import verdict_sentence
from miles_periodic.cli.rehearsal.result import Result, read_result
from miles_periodic.cli.rehearsal.style import STYLE
from miles_periodic.cli.whole_file import write_whole

#: The page may load nothing: a report that is mailed around must not call home.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(result: dict[str, Any], path: Path) -> None:
    """Write the report of a rehearsal to `path`.

    Raises pydantic.ValidationError, naming the field, where the result is none, and PeriodicError
    where the file cannot be written; either leaves `path` as it was.
    """
    write_whole(path, render_report(read_result(result)), "--report")


def render_report(result: Result) -> str:
    """The whole page."""
    page = element("html", _head(result), _body(result), lang="en")
    return f"<!doctype html>\n{page}\n"


def _head(result: Result) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", verdict_sentence(result)),
        element("style", own_text(STYLE)),
    )


def _body(result: Result) -> Markup:
    parts = (
        sections.checks(result),
        sections.savings(result),
        sections.proof(result),
        sections.pictures(result),
        sections.sandboxes(result),
        sections_plan.plan(result),
        sections.processes(result),
        sections_plan.stand_ins(result),
        sections_plan.reproduce(result),
    )
    footer = element("footer", "Written by miles-periodic. This file loads nothing from a network.")
    return element("body", sections.verdict(result), element("main", parts), footer)
