"""The matrix as terminal tables: a release per line, a feature per column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from miles_periodic.compat.matrix.facts import Fact, Facts
from miles_periodic.hooks.decisions import UPSTREAMS

STYLES = {"native": "green", "inject": "cyan", "unsupported": "dim"}
#: What stands in a cell; the words of the plan, but a gap where a feature cannot be had.
SAID = {"native": "native", "inject": "inject", "unsupported": "–"}


def slugs_on(upstream: str, matrix: Sequence[Facts]) -> tuple[str, ...]:
    """The features that some decision on an upstream is about, sorted."""
    return tuple(sorted({slug for facts in matrix for slug in facts.decisions.get(upstream, {})}))


def lines_on(upstream: str, matrix: Sequence[Facts]) -> Iterator[tuple[str, dict[str, Fact]]]:
    """The releases with a tree of an upstream: label, and feature to fact."""
    for facts in matrix:
        if upstream in facts.decisions:
            yield facts.label, dict(facts.decisions[upstream])


def tables(matrix: Sequence[Facts]) -> Iterator[Table]:
    """One table for each upstream; releases or features go down, whichever are more."""
    for upstream in UPSTREAMS:
        slugs, lines = slugs_on(upstream, matrix), dict(lines_on(upstream, matrix))
        if not slugs:
            continue
        releases_down = len(lines) >= len(slugs)
        down, across = (tuple(lines), slugs) if releases_down else (slugs, tuple(lines))
        table = Table(title=upstream, title_justify="left", box=None, pad_edge=False)
        table.add_column("release" if releases_down else "feature", no_wrap=True)
        for name in across:
            table.add_column(name.replace("-", "-\n"), no_wrap=True)
        for first in down:
            pairs = ((first, name) if releases_down else (name, first) for name in across)
            table.add_row(first, *(_cell(lines[label].get(slug)) for label, slug in pairs))
        yield table


def _cell(fact: Fact | None) -> Text:
    return Text(SAID[fact.decision], STYLES[fact.decision]) if fact else Text("")
