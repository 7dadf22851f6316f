"""Contributions: what we would send to an upstream of a feature, as data and files.

A folder `contributions/UPSTREAM/FEATURE/` holds `contribution.toml` and, below `files/`, the files
that it adds, at the paths that they get and with `.txt` behind: they are no modules of ours. A
second change of a feature for the same upstream is `FEATURE.PART`. Paths below the upstream's
package start with its name, wherever a checkout has it. The table:

    title       the pull request's
    branch      the name of the branch that is made
    row         of the ledger; its probe says whether a tree has the change already
    measured    headings of docs/benchmarks.md whose tables belong into the description
    motivation, design, compatibility   parts of the description, in Markdown

and then its steps in order, each a commit that leaves the tree importable: `subject`, `body`,
`adds` (paths below `files/`) and `edit`. An edit says in which `file`, where (`in`, the qualified
name of a function or class; `at`, one statement in it), what (`do`) and the new `code`:

    do           at          what happens
    import       –           the import is added, or joined with one of the same module
    before       statement   the code stands in front of it
    after        statement   the code stands behind it
    replace      statement   the code stands in its place
    branch       an if       `if` becomes `elif`, and the code's own `if` stands in front
    append       –           the code stands at the end of the body of `in`, or of the module
    expression   –           the one expression equal to `old` becomes the code
    line         –           of no Python: the code stands behind the one line that has `old`
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_periodic.upstream.rows import Row, ledger

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOES = (
    "import",
    "before",
    "after",
    "replace",
    "branch",
    "append",
    "expression",
    "line",
)


class NotFound(ValueError):
    """An edit's place is not in the module, or not there once."""

    def __init__(self, target: str, expected: str, found: str) -> None:
        super().__init__(f"{target}: expected {expected}, found {found}")
        self.target, self.expected, self.found = target, expected, found


@dataclass(frozen=True, slots=True)
class Statement:
    """Which statement is meant: every word that is given holds of it, and of no other.

    defines: a function or class it defines. assigns: a name it assigns. returns: a name in what
    it returns. calls: a function it calls, by its last name. tests: a name in the test of an
    `if`. passes: a string among its arguments. holds: a name anywhere in it, its body included.
    """

    defines: str = ""
    assigns: str = ""
    returns: str = ""
    calls: str = ""
    tests: str = ""
    passes: str = ""
    holds: str = ""

    def __str__(self) -> str:
        words = (f"{name} {value}" for name in self.__slots__ if (value := getattr(self, name)))
        return f"one statement that {' and '.join(words)}"


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of one file; the fields are those of a contribution's file."""

    file: str
    do: str
    code: str
    within: str = ""
    at: Statement = field(default_factory=Statement)
    old: str = ""

    @property
    def target(self) -> str:
        """What it changes, for messages."""
        return f"{self.file}:{self.within}" if self.within else self.file


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
    """One change for one upstream; `folder` is where its files are.

    name: the feature's slug, and behind a dot which part of it, where there are several.
    """

    upstream: str
    name: str
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
    def feature(self) -> str:
        """The slug of its feature."""
        return self.name.partition(".")[0]

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
    """(name, upstream) to what can be sent; ValueError names the file and what is wrong."""
    paths = sorted(folder().glob("*/*/contribution.toml"))
    return {(each.name, each.upstream): each for each in map(contribution_at, paths)}


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
    if values["do"] not in DOES:
        raise ValueError(f"no edit does {values['do']!r}: {', '.join(DOES)}")
    return Edit(within=within, at=at, **values)
