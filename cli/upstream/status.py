"""`miles upstream status` and `show`: what each change upstream means for this environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from miles_periodic.cli.compat.gather import facts_on
from miles_periodic.cli.upstream.verify import seen_on_file
from miles_periodic.compat.catalog import every_binding
from miles_periodic.compat.conditions import judge
from miles_periodic.compat.matrix.facts import Facts
from miles_periodic.compat.plan import trees_from
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.decisions import UPSTREAMS
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.nearest_name import did_you_mean
from miles_periodic.plugins import features
from miles_periodic.upstream.contributions import contributions
from miles_periodic.upstream.rows import Row, ledger
from miles_periodic.upstream.states import as_heard, heard

SCHEMA = 1
_STYLES = {"open": "yellow", "merged": "green", "closed": "dim", "unsent": "magenta"}

TreeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tree",
        metavar="UPSTREAM=DIR",
        help="Look at this unpacked wheel or checkout instead of what is installed. Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class Standing:
    """A row of the ledger, for one feature, in this environment.

    present: whether the installed tree has it; None where there is no tree or nothing to prove.
    bound: the bindings that the plan puts in because of it.
    """

    feature: str
    row: Row
    present: bool | None
    bound: tuple[str, ...]

    @property
    def meaning(self) -> str:
        """What follows from it here, in words."""
        if self.row.probe is None:
            there = "proposed by nobody"
        elif self.present is None:
            there = f"{self.row.upstream} is not installed"
        elif self.present:
            gone = ", ".join(name for name in self.row.replaces if name not in self.bound)
            there = f"in this tree, which needs no {gone}" if gone else "in this tree"
        else:
            since = self.row.applied_upstream
            there = f"not in this tree, but in {since}" if since else "not in this tree"
        return f"{there}; bound here: {', '.join(self.bound)}" if self.bound else there


def status_command(
    feature: Annotated[
        str | None, typer.Option("--feature", metavar="FEATURE", help="Only of this feature.")
    ] = None,
    tree: TreeOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print it as JSON (schema 1) and nothing else.")
    ] = False,
) -> None:
    """List what upstreams are doing about each feature, and what that means here.

    States are those of the ledger, or newer ones that `miles upstream refresh` heard.
    """
    slugs = [each.slug for each in features()]
    if feature is not None and feature not in slugs:
        raise PeriodicError(
            f"No feature is named {feature!r}.", remedy=did_you_mean(feature, slugs)
        )
    standings = list(standings_on(trees_from(tree or ()), feature))
    if json_output:
        values = {"schema": SCHEMA, "changes": [_as_json(each) for each in standings]}
        typer.echo(json.dumps(values, indent=2))
    else:
        _print(standings)


def standings_on(trees: Mapping[str, Tree], only: str | None = None) -> Iterator[Standing]:
    """Every row of every feature, as it stands with those trees."""
    facts, said = facts_on("here", dict(trees)), heard()
    for slug, keys in rows_by_feature().items():
        if only in (None, slug):
            for key in keys:
                row = as_heard(ledger()[key], said)
                yield Standing(slug, row, facts.claims.get(key), _bound(slug, row, facts))


def rows_by_feature() -> dict[str, list[str]]:
    """Feature to the keys of its rows: those that it names, then those of its bindings."""
    by_binding = {row.key: set(row.every_binding) for row in ledger().values() if not row.number}
    found: dict[str, list[str]] = {}
    for feature in features():
        own = {name for upstream in UPSTREAMS for name in every_binding(feature.slug, upstream)}
        unnumbered = [key for key, names in by_binding.items() if names & own]
        found[feature.slug] = [*feature.pull_requests, *unnumbered]
    return found


def _bound(slug: str, row: Row, facts: Facts) -> tuple[str, ...]:
    """The row's bindings that the plan puts in for a feature, on whatever upstream."""
    put_in = {
        name
        for by_slug in facts.decisions.values()
        if slug in by_slug
        for name in by_slug[slug].bindings
    }
    return tuple(name for name in row.every_binding if name in put_in)


def _as_json(standing: Standing) -> dict[str, Any]:
    row = standing.row
    return {
        "feature": standing.feature,
        "key": row.key,
        "url": row.url,
        "title": row.title,
        "state": row.state,
        "last_update": row.last_update,
        "applied_upstream": row.applied_upstream,
        "in_this_tree": standing.present,
        "bindings": list(standing.bound),
        "meaning": standing.meaning,
    }


def _print(standings: list[Standing]) -> None:
    console = Console(highlight=False)
    for slug in dict.fromkeys(each.feature for each in standings):
        table = Table(title=slug, title_justify="left", box=None, pad_edge=False)
        table.add_column("change", no_wrap=True)
        table.add_column("state", no_wrap=True)
        table.add_column("what it is, and what it means here", overflow="fold")
        for each in standings:
            if each.feature == slug:
                state = Text(each.row.state, _STYLES[each.row.state])
                what = Group(Text(each.row.title, "dim"), Text(each.meaning))
                table.add_row(each.row.key, state, what)
        console.print(table)
        console.print()


def show_command(
    key: Annotated[str, typer.Argument(metavar="KEY")],
    tree: TreeOption = None,
) -> None:
    """Show one change: its state, what proves it in the tree here, and what of ours hangs on it."""
    if key not in ledger():
        raise PeriodicError(
            f"{key!r} is no row of the ledger.", remedy=did_you_mean(key, list(ledger()))
        )
    row = as_heard(ledger()[key], heard())
    lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, value in _lines(row, trees_from(tree or ())):
        lines.add_row(name, Text(value))
    console = Console(highlight=False)
    console.print(Text.assemble((f"{row.key}  ", "bold"), row.title))
    console.print(lines)


def _lines(row: Row, trees: Mapping[str, Tree]) -> Iterator[tuple[str, str]]:
    yield "state", f"{row.state}, as of {row.last_update}"
    fields = (
        "url",
        "opened",
        "merged",
        "origin",
        "forwarded",
        "applied_upstream",
        "description",
        "probe_from",
    )
    yield from ((name.replace("_", "-"), value) for name in fields if (value := getattr(row, name)))
    has = [version for version, holds in seen_on_file(row) if holds]
    yield "releases with it", f"{has[0]} to {has[-1]}" if has else "none of the matrix"
    by_feature = rows_by_feature()
    yield "features", ", ".join(slug for slug, keys in by_feature.items() if row.key in keys)
    yield from (
        (name, ", ".join(v)) for name in ("bindings", "replaces") if (v := getattr(row, name))
    )
    ready = (each.name for each in contributions().values() if each.row == row.key)
    yield from (("ready", f"miles upstream prepare {feature}") for feature in ready)
    if row.probe is None or row.upstream not in trees:
        yield "here", "nothing to prove" if row.probe is None else f"no {row.upstream} is installed"
        return
    verdict = judge(row.probe, trees[row.upstream])
    yield "here", f"{'in' if verdict.holds else 'not in'} {trees[row.upstream].name}"
    yield from (("", str(evidence)) for evidence in verdict.evidence)
