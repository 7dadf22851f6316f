"""A release's facts, with the ledger's claims, in as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
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

#: From so many releases on, processes are worth their start.
_MIN_FOR_PROCESSES = 4


def claims() -> Claims:
    """Every row of the ledger that can be proved."""
    rows = ledger().values()
    return {row.key: (row.upstream, row.probe) for row in rows if row.probe is not None}


def facts_on(label: str, trees: dict[str, Tree], *, plan: bool = True) -> Facts:
    """What some trees say about our features, unless not asked to plan them, and the ledger."""
    return facts_of(label, trees, features() if plan else (), replacements(), claims())


def facts_in(release: Release, folder: Path, *, plan: bool = True) -> Facts:
    """What a release says whose sources are in `folder`."""
    return facts_on(release.label, release.trees(folder), plan=plan)


def gathered(releases: Sequence[Release], *, plan: bool = True) -> Iterator[Facts]:
    """What each release says, in that order; downloads what is not in the cache.

    plan: also every feature's decisions, which takes most of the time.

    Shows progress on standard error. Raises PeriodicError where a release cannot be had.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        fetching = progress.add_task("fetching releases", total=len(releases))
        doing = "planning every feature" if plan else "judging every claim"
        reading = progress.add_task(doing, total=len(releases))
        folders = ((r, _fetched(r, lambda: progress.advance(fetching))) for r in releases)
        for facts in _read(folders, plan, len(releases)):
            yield facts
            progress.advance(reading)


def _fetched(release: Release, advance: Callable[[], None]) -> Path:
    folder = unpacked(release)
    advance()
    return folder


def _read(
    folders: Iterable[tuple[Release, Path]], plan: bool, num_releases: int
) -> Iterator[Facts]:
    """What stands in the folders: in this process where they are few, else in one per core.

    Further releases are fetched while the first ones are read.
    """
    if num_releases < _MIN_FOR_PROCESSES:
        yield from (facts_in(release, folder, plan=plan) for release, folder in folders)
        return
    num_workers = max(1, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(facts_in, r, folder, plan=plan) for r, folder in folders]
        yield from (each.result() for each in waiting)


def trees_of(options: Sequence[str]) -> dict[str, Tree]:
    """The trees that `--tree UPSTREAM=DIR` names, and no installed ones."""
    named = {option.partition("=")[0] for option in options}
    return {upstream: tree for upstream, tree in trees_from(options).items() if upstream in named}
