"""`miles patches list` and `check`: what there is, and how it stands in a checkout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from miles_periodic.cli.patches.gather import (
    CheckoutFolder,
    Features,
    Looked,
    Upstreams,
    chosen,
    look,
    open_checkout,
)
from miles_periodic.patches.headers import Header
from miles_periodic.patches.rewriting import alone_in
from miles_periodic.patches.states import WORDS, Applied, Conflict, NotApplicable, Ready, State
from miles_periodic.upstream.rows import ledger

SCHEMA = 1
CONFLICT_STATUS = 1
_COLOURS = {Applied: "green", Ready: "cyan", Conflict: "bold red", NotApplicable: "dim"}

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON (schema 1) and nothing else.")]


def list_command(names: Features = None, json_output: Json = False) -> None:
    """List the patch sets: what each does, to which releases it applies, and when it can go."""
    wanted = chosen(names or ())
    if json_output:
        listed = [asdict(header) for header in wanted]
        typer.echo(json.dumps({"schema": SCHEMA, "patch_sets": listed}, indent=2))
        return
    table = _table("patch set", "what")
    for header in wanted:
        table.add_row(Text(header.name, "bold"), _said(header))
    Console(highlight=False).print(table)


def check_command(
    checkout: CheckoutFolder,
    names: Features = None,
    upstream: Upstreams = None,
    json_output: Json = False,
) -> None:
    """Say how each patch set stands in a checkout; exit with 1 where one is in conflict.

    Nothing is written, but what an interrupted command left is put back first.
    """
    place, trees = open_checkout(checkout, upstream or ())
    with alone_in(place.root):
        looked = list(look(chosen(names or ()), place, trees))
    if json_output:
        typer.echo(json.dumps({"schema": SCHEMA, "patch_sets": _as_json(looked)}, indent=2))
    else:
        table = _table("patch set", "state", "where")
        for each in looked:
            style = _COLOURS[type(each.state)]
            table.add_row(each.header.name, Text(WORDS[type(each.state)], style), where(each.state))
        Console(highlight=False).print(table)
    if any(isinstance(each.state, Conflict) for each in looked):
        raise typer.Exit(CONFLICT_STATUS)


def where(state: State) -> str:
    """The files of a patch set, or what stands against it, as it stands in tables."""
    if isinstance(state, NotApplicable):
        return state.reason
    if isinstance(state, Conflict):
        return (
            f"{state.file}: {state.target}\nexpected: {state.expected}\nfound: {state.found}\n"
            f"{state.remedy}"
        )
    without = getattr(state, "without", ())
    left_out = [f"without: no known shape of {', '.join(without)}"] if without else []
    return "\n".join([*state.files, *left_out])


def _said(header: Header) -> str:
    if header.nothing:
        return f"nothing to patch: {header.nothing}"
    rows = ledger()
    changes = ", ".join(f"{key} ({rows[key].state})" for key in header.pull_requests)
    return (
        f"{header.what} {header.why}\napplies to: {', '.join(header.applies_to)}\n"
        f"changes: {changes}\nexit: {header.exit}"
    )


def _as_json(looked: Sequence[Looked]) -> list[dict[str, Any]]:
    return [
        {
            "upstream": each.header.upstream,
            "feature": each.header.feature,
            "state": WORDS[type(each.state)],
            **asdict(each.state),
        }
        for each in looked
    ]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), show_header=False)
    *narrow, last = columns
    for column in narrow:
        table.add_column(column, no_wrap=True)
    table.add_column(last, overflow="fold", ratio=1)
    return table
