"""`miles upstream expired`: code of ours that no release in range needs any more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from miles_periodic.cli.compat.gather import facts_on, trees_of
from miles_periodic.compat.catalog import BINDINGS
from miles_periodic.compat.matrix.facts import Facts, recorded
from miles_periodic.compat.matrix.releases import known_releases
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.upstream.rows import Row, ledger

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Expired:
    """A binding that can be deleted.

    keys: the changes that made it needless. files: modules of adapters in which only expired ones
    are left, so that they can go whole.
    """

    binding: str
    adapter: str
    keys: tuple[str, ...]
    files: tuple[str, ...] = ()


def expired_command(
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            metavar="UPSTREAM=DIR",
            help="A checkout that must not need the code either. Repeatable.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print it as JSON (schema 1) and nothing else.")
    ] = False,
) -> None:
    """List our bindings whose replacement is in every release in range, as it is on file.

    These can be deleted: the binding from the catalog, its adapter, and what stands with them.
    """
    matrix = [recorded(release.label) for release in known_releases()]
    missing = [r.name for r, f in zip(known_releases(), matrix, strict=True) if f is None]
    if missing:
        raise PeriodicError(
            f"Nothing is on file of {', '.join(missing)}.",
            remedy="Run: miles compat matrix --write.",
        )
    others = [facts_on(name, {name: each}) for name, each in trees_of(tree or ()).items()]
    found = list(expired([f for f in [*matrix, *others] if f is not None], ledger()))
    if json_output:
        listed = [{"binding": e.binding, "adapter": e.adapter, "changes": e.keys} for e in found]
        typer.echo(json.dumps({"schema": SCHEMA, "expired": listed}, indent=2))
        return
    for each in found:
        typer.echo(f"{each.binding}: {', '.join(each.keys)} is everywhere; delete {each.adapter}")
        for file in each.files:
            typer.echo(f"  and the file of {file}, which holds nothing else")
    typer.echo(f"{len(found)} of {len(BINDINGS)} bindings are expired")


def expired(matrix: Sequence[Facts], rows: Mapping[str, Row]) -> Iterator[Expired]:
    """The bindings that some change replaces in each of the releases with their upstream."""
    gone = {
        name: keys
        for name, binding in BINDINGS.items()
        if (keys := _replaced_everywhere(name, binding.upstream, matrix, rows))
    }
    left = {b.adapter.partition(":")[0] for n, b in BINDINGS.items() if n not in gone}
    for name, keys in gone.items():
        module = BINDINGS[name].adapter.partition(":")[0]
        yield Expired(name, BINDINGS[name].adapter, keys, () if module in left else (module,))


def _replaced_everywhere(
    name: str, upstream: str, matrix: Sequence[Facts], rows: Mapping[str, Row]
) -> tuple[str, ...]:
    """The changes by which each release does without the binding; empty where one needs it."""
    changes = [row.key for row in rows.values() if name in row.replaces]
    releases = [facts for facts in matrix if upstream in facts.decisions]
    by_release = [[key for key in changes if facts.claims.get(key)] for facts in releases]
    if not releases or not all(by_release):
        return ()
    return tuple(dict.fromkeys(key for keys in by_release for key in keys))
