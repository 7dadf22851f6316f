"""A measurement as a table for people or as JSON for machines."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


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
    console = Console()
    console.print(table)
    for name, value in result.items():
        if name != "rows":
            console.print(f"{name.replace('_', ' ')}: {_text(value)}", highlight=False)


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
