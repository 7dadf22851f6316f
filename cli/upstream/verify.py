"""`miles upstream verify`: prove the ledger's claims on the sources of every release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer

from miles_periodic.cli import messages
from miles_periodic.cli.compat.gather import gathered, trees_of
from miles_periodic.cli.options import Releases
from miles_periodic.compat.conditions import judge
from miles_periodic.compat.matrix.facts import Facts, recorded
from miles_periodic.compat.matrix.releases import Release, chosen, known_releases
from miles_periodic.compat.tree import Tree
from miles_periodic.upstream.claims import disagreements
from miles_periodic.upstream.rows import Row, ledger

DISAGREES_STATUS = 1


def verify_command(
    release: Releases = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            metavar="UPSTREAM=DIR",
            help="A checkout of a main branch: what is merged with a tag or that branch as "
            "applied-upstream must be in it. Repeatable.",
        ),
    ] = None,
    on_file: Annotated[
        bool,
        typer.Option("--on-file", help="Compare with what is on file; download nothing."),
    ] = False,
) -> None:
    """Prove each row of the ledger: its change is in the release it names, and in none before.

    Exits with 1 where the sources and the ledger disagree.
    """
    releases = chosen(release or [])
    facts = (
        [recorded(each.label) for each in releases]
        if on_file
        else list(gathered(releases, plan=False))
    )
    found = {each.label: each for each in facts if each is not None}
    lines = list(_all_lines(found, releases, trees_of(tree or ())))
    for line in lines:
        messages.say("disagrees", line, "bold red")
    typer.echo(f"{len(ledger())} rows, {len(found)} releases, {len(lines)} disagreements")
    if lines:
        raise typer.Exit(DISAGREES_STATUS)


def _all_lines(
    found: dict[str, Facts], releases: Sequence[Release], trees: dict[str, Tree]
) -> Iterator[str]:
    for row in ledger().values():
        for line in disagreements(row, _seen(row, releases, found)):
            yield f"{row.key}: {line}"
        if row.upstream in trees and (said := _in_tree(row, trees[row.upstream])):
            yield f"{row.key}: {said}"


def seen_on_file(row: Row) -> list[tuple[str, bool]]:
    """The releases of a row's upstream, and whether its change is in them, as it is on file."""
    found = {each.label: recorded(each.label) for each in own_releases(row, known_releases())}
    return _seen(row, known_releases(), {label: f for label, f in found.items() if f is not None})


def own_releases(row: Row, releases: Iterable[Release]) -> list[Release]:
    """Those of the distribution that is the upstream's own: one inside of another is a fork."""
    return [release for release in releases if release.upstreams[-1] == row.upstream]


def _seen(row: Row, releases: Iterable[Release], found: dict[str, Facts]) -> list[tuple[str, bool]]:
    return [
        (release.version, found[release.label].claims[row.key])
        for release in own_releases(row, releases)
        if release.label in found and row.key in found[release.label].claims
    ]


def _in_tree(row: Row, tree: Tree) -> str:
    """What a newer checkout says against a row; empty where it agrees, or nothing is claimed.

    Megatron's `dev` has what its main branch has not: no other tree is asked about it.
    """
    if row.probe is None or row.applied_upstream in ("", "dev"):
        return ""
    return "" if judge(row.probe, tree).holds else f"{tree.name} has it not"
