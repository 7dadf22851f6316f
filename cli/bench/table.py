"""A measurement as a table for people or as JSON for machines."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

_WIDEST = 10_000


def show(title: str, result: dict[str, Any], json_output: bool) -> None:
    """Print `result`: its `rows` as a table, everything else as facts below it."""
    if json_output:
        typer.echo(json.dumps(result, indent=2))
        return
    table = Table(title=title, title_justify="left")
    for column in result["rows"][0]:
        table.add_column(column.replace("_", " "))
    for row in result["rows"]:
        table.add_row(*(_text(value) for value in row.values()))
    print_whole(table)
    console = Console()
    for name, value in result.items():
        if name != "rows":
            console.print(f"{name.replace('_', ' ')}: {_text(value)}", highlight=False)


def print_whole(table: Table) -> None:
    """Print a table; into a file or a pipe, whose lines have no width, with every cell whole."""
    console = Console()
    if not console.is_terminal:
        wanted = Console(width=_WIDEST).measure(table).maximum
        console = Console(width=max(console.width, wanted))
    console.print(table)


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
