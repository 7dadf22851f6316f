"""A release's facts, with the ledger's claims, in as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from miles_periodic.compat.matrix.facts import Claims, Facts, facts_of
from miles_periodic.compat.matrix.releases import Release
from miles_periodic.compat.matrix.wheels import unpacked
from miles_periodic.compat.plan import trees_from
from miles_periodic.compat.tree import Tree
from miles_periodic.plugins import features
from miles_periodic.upstream.rows import ledger, replacements


def claims() -> Claims:
    """Every row of the ledger that can be proved."""
    rows = ledger().values()
    return {row.key: (row.upstream, row.probe) for row in rows if row.probe is not None}


def facts_on(label: str, trees: dict[str, Tree]) -> Facts:
    """What some trees say about our features and about the ledger."""
    return facts_of(label, trees, features(), replacements(), claims())


def facts_in(release: Release, folder: Path) -> Facts:
    """What a release says whose sources are in `folder`."""
    return facts_on(release.label, release.trees(folder))


def gathered(releases: Sequence[Release]) -> Iterator[Facts]:
    """What each release says, in that order; downloads what is not in the cache.

    Shows progress on standard error. Raises PeriodicError where a release cannot be had.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress,
        ProcessPoolExecutor(_num_workers(), mp_context=get_context("spawn")) as pool,
    ):
        fetching = progress.add_task("fetching releases", total=len(releases))
        planning = progress.add_task("planning every feature", total=len(releases))
        waiting = []
        for release in releases:
            waiting.append(pool.submit(facts_in, release, unpacked(release)))
            progress.advance(fetching)
        for facts in waiting:
            yield facts.result()
            progress.advance(planning)


def trees_of(options: Sequence[str]) -> dict[str, Tree]:
    """The trees that `--tree UPSTREAM=DIR` names, and no installed ones."""
    named = {option.partition("=")[0] for option in options}
    return {upstream: tree for upstream, tree in trees_from(options).items() if upstream in named}


def _num_workers() -> int:
    return max(1, len(os.sched_getaffinity(0)))
