"""`miles compat matrix`: plan every feature against every release in range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from miles_periodic.cli import messages
from miles_periodic.cli.compat.gather import facts_on, gathered, trees_of
from miles_periodic.cli.compat.page import page
from miles_periodic.cli.compat.tables import tables
from miles_periodic.cli.options import Releases
from miles_periodic.compat.matrix.facts import Facts, differences, record, recorded
from miles_periodic.compat.matrix.releases import Release, chosen
from miles_periodic.hooks.errors import PeriodicError

SCHEMA = 1
DIFFERENT_STATUS = 1


def matrix_command(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the facts as JSON (schema 1) and nothing else.")
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE", help="Write the matrix as a Markdown page as well."
        ),
    ] = None,
    release: Releases = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            metavar="UPSTREAM=DIR",
            help="Also plan against this checkout or fork: the package folder or the one that "
            "holds it. Repeatable.",
        ),
    ] = None,
    on_file: Annotated[
        bool,
        typer.Option("--on-file", help="Show what is on file; download and plan nothing."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare with what is on file; exit with 1 on a difference."),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Put what was found on file, for a commit.")
    ] = False,
) -> None:
    """Plan every feature with its default settings against every release of the matrix.

    Wheels are downloaded without their dependencies into the user's cache, and nothing in them is
    imported. A run over all releases takes some minutes the first time.
    """
    _refuse_together(on_file, check or write, tree or ())
    releases = chosen(release or [])
    found = _on_file(releases) if on_file else list(gathered(releases))
    others = trees_of(tree or ())
    found += [facts_on(f"{name} (tree)", {name: each}) for name, each in others.items()]
    if write:
        for facts in found:
            record(facts)
    if markdown is not None:
        markdown.write_text(page(found), encoding="utf-8")
    _show(found, json_output)
    if check:
        _check(found)


def _refuse_together(on_file: bool, needs_sources: bool, trees: Sequence[str]) -> None:
    if on_file and needs_sources:
        raise PeriodicError(
            "--on-file looks at no sources.", remedy="Leave out --on-file, or --check and --write."
        )
    if needs_sources and trees:
        raise PeriodicError(
            "Only releases are on file.", remedy="Leave out --tree, or --check and --write."
        )


def _on_file(releases: Sequence[Release]) -> list[Facts]:
    found = [(release, recorded(release.label)) for release in releases]
    for release, facts in found:
        if facts is None:
            raise PeriodicError(
                f"Nothing is on file of {release.name}.",
                remedy=f"Run: miles compat matrix --release {release.name} --write.",
            )
    return [facts for _, facts in found if facts is not None]


def _show(found: Sequence[Facts], json_output: bool) -> None:
    if json_output:
        values = {"schema": SCHEMA, "releases": [facts.to_json() for facts in found]}
        typer.echo(json.dumps(values, indent=2))
        return
    console = Console(highlight=False)
    for table in tables(found):
        console.print(table)
        console.print()
    console.print("–: cannot be had; the reasons are in --json and --markdown", style="dim")


def _check(found: Sequence[Facts]) -> None:
    lines = [line for facts in found for line in differences(recorded(facts.label), facts)]
    for line in lines:
        messages.say("differs", line, "bold red")
    if lines:
        raise typer.Exit(DIFFERENT_STATUS)
