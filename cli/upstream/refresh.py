"""`miles upstream refresh`: ask GitHub how the ledger's pull requests stand."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from miles_periodic.cli import messages
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.upstream.github import GitHub
from miles_periodic.upstream.refresh import Refreshed, refresh
from miles_periodic.upstream.rows import folder, ledger
from miles_periodic.upstream.states import heard, keep, rewritten


def refresh_command(
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Write states and dates into the ledger itself, for a commit."
        ),
    ] = False,
) -> None:
    """Ask GitHub about every pull request and issue of the ledger.

    A token in $GITHUB_TOKEN or $GH_TOKEN raises the limit on questions; none is needed. What was
    asked before is asked for changes only. Without a network all stays as it is, and that is said.
    """
    rows = [row for row in ledger().values() if row.number]
    with GitHub() as github, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("asking GitHub", total=len(rows))
        found = refresh(rows, github, heard(), lambda: progress.advance(task))
    keep(found.said)
    if write:
        _write(found)
    _say(found, len(rows))


def _write(found: Refreshed) -> None:
    for path in sorted(folder().glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        try:
            path.write_text(rewritten(text, found.said), encoding="utf-8")
        except OSError as error:
            raise PeriodicError(
                f"{path} cannot be written: {error}.",
                remedy="Run it in a checkout of miles-periodic, or leave out --write.",
            ) from error


def _say(found: Refreshed, num_rows: int) -> None:
    for key in found.changed:
        row, said = ledger()[key], found.said[key]
        when = f" on {said.merged}" if said.merged else ""
        typer.echo(f"{key}: {said.state}{when}, the ledger says {row.state}; {said.title}")
    for key in found.unknown:
        messages.warning(f"GitHub knows nothing of {key}: {ledger()[key].url}")
    if found.stopped:
        until = time.strftime(" until %H:%M:%S", time.localtime(found.until)) if found.until else ""
        messages.warning(f"{found.stopped}{until}; what was known before stays.")
    typer.echo(f"{found.asked} of {num_rows} answered, {len(found.changed)} differ from the ledger")
