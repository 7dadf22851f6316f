"""Contributions: what we would send to an upstream of a feature, as data and files.

A folder `contributions/UPSTREAM/FEATURE/` holds `contribution.toml` and, below `files/`, the files
that it adds, at the paths that they get and with `.txt` behind: they are no modules of ours. Paths
below the upstream's package start with its name, wherever a checkout has it. The table:

    title       the pull request's
    branch      the name of the branch that is made
    row         of the ledger; its probe says whether a tree has the change already
    measured    headings of docs/benchmarks.md whose tables belong into the description
    motivation, design, compatibility   parts of the description, in Markdown

and then its steps in order, each a commit that leaves the tree importable: `subject`, `body`,
`adds` (paths below `files/`) and `edit` (see edits.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles_periodic.upstream.edits import Edit, NotFound, Statement, doings, edited
from miles_periodic.upstream.rows import Row, ledger

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Path to the text of a file, or None where there is none.
Files = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One commit: the files that it adds whole, and its edits of files that are there."""

    subject: str
    body: str
    adds: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """The files of tests that it adds."""
        return tuple(path for path in self.adds if Path(path).name.startswith("test_"))


@dataclass(frozen=True, slots=True)
class Contribution:
    """One change for one upstream; `folder` is where its files are."""

    upstream: str
    feature: str
    folder: Path
    title: str
    branch: str
    row: str
    motivation: str
    design: str
    compatibility: str
    steps: tuple[Step, ...]
    measured: tuple[str, ...] = ()

    @property
    def change(self) -> Row:
        """The row of the ledger that it is about."""
        return ledger()[self.row]

    @property
    def tests(self) -> tuple[str, ...]:
        """The files of tests that it adds."""
        return tuple(path for step in self.steps for path in step.tests)

    def text(self, path: str) -> str:
        """The text of a file that it adds."""
        return (self.folder / "files" / f"{path}.txt").read_text(encoding="utf-8")


def folder() -> Path:
    """Where the contributions are."""
    return Path(__file__).with_name("contributions")


def contributions() -> Mapping[tuple[str, str], Contribution]:
    """(feature, upstream) to what can be sent; ValueError names the file and what is wrong."""
    paths = sorted(folder().glob("*/*/contribution.toml"))
    return {(each.feature, each.upstream): each for each in map(contribution_at, paths)}


def contribution_at(path: Path) -> Contribution:
    """The contribution that a file describes."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        steps = tuple(_step(each) for each in table.pop("step"))
        measured = tuple(table.pop("measured", ()))
        where = path.parent
        made = Contribution(
            where.parent.name, where.name, where, steps=steps, measured=measured, **table
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    if made.row not in ledger():
        raise ValueError(f"{path}: the ledger has no row {made.row}")
    return made


def _step(table: Mapping[str, Any]) -> Step:
    edits = tuple(_edit(each) for each in table.get("edit", ()))
    return Step(table["subject"], table["body"].strip(), tuple(table.get("adds", ())), edits)


def _edit(table: Mapping[str, Any]) -> Edit:
    values = dict(table)
    within, at = values.pop("in", ""), Statement(**values.pop("at", {}))
    if values["do"] not in doings():
        raise ValueError(f"no edit does {values['do']!r}: {', '.join(doings())}")
    return Edit(within=within, at=at, **values)


def changed_by(contribution: Contribution, files: Files) -> Iterator[dict[str, str]]:
    """Path to its new text, for each step in order; `files` are those of the base.

    Nothing is written. NotFound says which target is not as it was when the change was written.
    """
    ours: dict[str, str] = {}

    def now(path: str) -> str | None:
        return ours.get(path, files(path))

    for step in contribution.steps:
        changed = {path: _added(contribution, path, now) for path in step.adds}
        for path in dict.fromkeys(edit.file for edit in step.edits):
            changed[path] = _edited(path, step, now)
        ours |= changed
        yield changed


def _added(contribution: Contribution, path: str, files: Files) -> str:
    if files(path) is not None:
        raise NotFound(path, "no such file yet", "a file")
    return contribution.text(path)


def _edited(path: str, step: Step, files: Files) -> str:
    text = files(path)
    if text is None:
        raise NotFound(path, "a file that the change edits", "no such file")
    return edited(text, [edit for edit in step.edits if edit.file == path])
