"""`miles patches export`: patch sets as files for people who build images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from miles_periodic.cli.patches.gather import (
    CheckoutFolder,
    Features,
    Looked,
    Upstreams,
    chosen,
    look,
    open_checkout,
    refuse_conflicts,
    refuse_idle,
)
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.checkout import Checkout
from miles_periodic.patches.codemod import put_in, sources_of, without_points
from miles_periodic.patches.export import Exported, export
from miles_periodic.patches.headers import Header
from miles_periodic.patches.rewriting import alone_in
from miles_periodic.patches.states import Applied, Ready


def export_command(
    checkout: CheckoutFolder,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="DIR",
            help="A folder that does not exist yet: git/ gets what git am takes, quilt/ a series "
            "for quilt push or patch -p1.",
        ),
    ],
    names: Features = None,
    upstream: Upstreams = None,
    author: Annotated[
        str,
        typer.Option(
            "--author",
            metavar="NAME <ADDRESS>",
            help="Who made the patches. Default: as git has it in the checkout.",
        ),
    ] = "",
) -> None:
    """Write patch sets as git format-patch files and as a quilt series; DIR stays as it is.

    They are for the checkout's files without any patch set of ours, and each stands on those
    before it.
    """
    place, trees = open_checkout(checkout, upstream or ())
    with alone_in(place.root):
        looked = list(look(chosen(names or ()), place, trees))
        refuse_idle(names or (), looked, place)
        refuse_conflicts(looked, place)
        sets = [each for each in looked if isinstance(each.state, Applied | Ready)]
        before, exported = _stacked(sets, place)
    if not exported:
        raise PeriodicError(
            f"No patch set applies to {place.root}.",
            tree=str(place.root),
            remedy="Look at: miles patches check --checkout DIR.",
        )
    day = time.strftime("%Y-%m-%d")
    written = export(output, before, exported, author=author or place.author(), day=day)
    typer.echo(f"{len(exported)} patch sets, {len(written)} files in {output}")


def _stacked(sets: list[Looked], place: Checkout) -> tuple[dict[str, bytes], list[Exported]]:
    """The files without any patch set, and each set's files on top of those before it."""
    points = [point for each in sets for point in each.points]
    sources = sources_of(place.root, points)
    before = {file: without_points(text, file) for file, text in sources.items()}
    now, exported = dict(before), []
    for each in sets:
        after = put_in(each.points, now)
        now |= after
        exported.append(Exported(each.header, after, _fields(each.header)))
    return before, exported


def _fields(header: Header) -> dict[str, str]:
    """The fields of DEP-3 that the header knows, and two of our own."""
    return {
        "Origin": "vendor",
        "Forwarded": "not-needed",
        "Pull-Requests": ", ".join(header.pull_requests),
        "Exit": header.exit,
    }
