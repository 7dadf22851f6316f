"""The matrix as the Markdown page docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from miles_periodic.cli.compat.tables import SAID, lines_on, slugs_on
from miles_periodic.compat.matrix.called import planned_only
from miles_periodic.compat.matrix.facts import Fact, Facts
from miles_periodic.hooks.decisions import UPSTREAMS
from miles_periodic.upstream.rows import Row, ledger

HEAD = """# Compatibility

Where each feature stands on each release, with its default settings, read from the sources and
never from a version string. `miles compat matrix` makes this page; `miles plan` says the same of
what is installed, with the evidence.

| word | meaning |
|---|---|
| native | the release has it: nothing is bound |
| inject | the release lacks it or a part of it; our bindings put it in, and tests call each |
| inject, planned | the same, but no test on file calls all of them: a line below names these |
| – | it cannot be had there, for the reason below the table |

Every target of what is injected has a shape there that is known to work. A feature needs every
upstream that it touches. The packages inside of the `miles-rl` wheel are forks, and stand for
themselves. A test calls a binding where it runs the release itself, or another one whose targets
have the same shapes; compat/matrix/called.toml has on file which test calls what where.
"""
LEDGER = """## Changes upstream

What the ledger follows, and the first release whose sources have it. `miles upstream verify` proves
each line: there in that release and in the later ones, not there in the earlier ones. A tag or a
branch in the last column is where a change stands that no release has.

| change | title | state | first release |
|---|---|---|---|"""


def page(matrix: Sequence[Facts]) -> str:
    """The page's text."""
    parts = [HEAD]
    for upstream in UPSTREAMS:
        if slugs_on(upstream, matrix):
            parts += [
                f"## On {upstream}\n",
                *_table(upstream, matrix),
                "",
                *_reasons(upstream, matrix),
            ]
    parts += [LEDGER, *map(_change, ledger().values()), ""]
    return "\n".join(parts)


def _table(upstream: str, matrix: Sequence[Facts]) -> Iterator[str]:
    slugs = slugs_on(upstream, matrix)
    yield f"| release | {' | '.join(slugs)} |"
    yield "|---" * (len(slugs) + 1) + "|"
    for facts in matrix:
        if upstream in facts.decisions:
            cells = (_cell(facts, upstream, slug) for slug in slugs)
            yield f"| {facts.label} | {' | '.join(cells)} |"


def _cell(facts: Facts, upstream: str, slug: str) -> str:
    fact = facts.decisions[upstream].get(slug)
    planned = ", planned" if _uncalled(facts, upstream, slug) else ""
    return f"{SAID[fact.decision]}{planned}" if fact else ""


def _uncalled(facts: Facts, upstream: str, slug: str) -> tuple[str, ...]:
    """What a decision puts in and no test calls in targets of these shapes."""
    fact = facts.decisions[upstream].get(slug)
    names = fact.bindings if fact else ()
    return planned_only({name: facts.alike.get(name, ()) for name in names})


def _reasons(upstream: str, matrix: Sequence[Facts]) -> Iterator[str]:
    """For each feature and reason, the releases that give it, as they follow each other."""
    for slug in slugs_on(upstream, matrix):
        yield f"**{slug}**\n"
        for labels, fact in _runs(slug, list(lines_on(upstream, matrix))):
            span = labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
            bound = (
                f" Binds {', '.join(f'`{name}`' for name in fact.bindings)}."
                if fact.bindings
                else ""
            )
            yield f"- {span}: {fact.decision}, as {_plain(fact.reason)}.{bound}"
        yield from _not_called(upstream, slug, matrix)
        yield ""


def _not_called(upstream: str, slug: str, matrix: Sequence[Facts]) -> Iterator[str]:
    """For each set of bindings that no test calls, the releases in which that is so."""
    found: dict[tuple[str, ...], list[str]] = {}
    for facts in matrix:
        if upstream in facts.decisions and (names := _uncalled(facts, upstream, slug)):
            found.setdefault(names, []).append(facts.label)
    for names, labels in found.items():
        said = ", ".join(f"`{name}`" for name in names)
        yield f"- Planned, with no test on file that calls it: {said} on {', '.join(labels)}."


def _runs(
    slug: str, lines: Sequence[tuple[str, dict[str, Fact]]]
) -> Iterator[tuple[list[str], Fact]]:
    """Neighbouring releases with one fact; the distributions are kept apart."""
    labels: list[str] = []
    held: Fact | None = None
    for label, by_slug in lines:
        fact = by_slug.get(slug)
        follows = labels and _distribution(labels[-1]) == _distribution(label)
        if labels and not (follows and fact == held) and held is not None:
            yield labels, held
            labels = []
        if fact is not None:
            labels.append(label)
        held = fact
    if labels and held is not None:
        yield labels, held


def _distribution(label: str) -> str:
    return label.rpartition("-")[0]


def _plain(reason: str) -> str:
    """A reason as Markdown text: what could be markup in it is none."""
    return reason.replace("_", "\\_").replace("*", "\\*").replace("<", "\\<")


def _change(row: Row) -> str:
    named = f"[{row.key}]({row.url})" if row.url else row.key
    return f"| {named} | {_plain(row.title)} | {row.state} | {row.applied_upstream or '–'} |"
