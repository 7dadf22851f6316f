"""The ledger: what upstreams are doing about each feature, as data that the sources can prove.

One table per row in `ledger/UPSTREAM.toml`; names that Debian's DEP-3 has are its names:

    title             the pull request's, or what the change is
    state             open, merged, closed, or unsent: nobody has proposed it
    opened, merged    dates, as exact as they are known
    last-update       the day on which the state was looked at
    applied-upstream  the first release that has it, or the tag or branch where it stands alone
    origin            upstream (they wrote it), or vendor (we did, and sent it)
    forwarded         of an unsent change: no, or not-needed with a reason
    description       what a tree that has it does
    probe             the same as conditions on a tree's sources (hooks/conditions.py)
    probe-from        of a change that is not merged: what the names in its probe were read from
    bindings          ours that exist because of it, and remain where it is
    replaces          ours that are needless in a tree that has it: they turn themselves off there

A key is `upstream#number`, of a pull request or an issue, or `upstream/words` for a change whose
number is not known or that nobody has sent.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from miles_periodic.hooks.conditions import Condition, Replacement, condition_from
from miles_periodic.hooks.decisions import UPSTREAMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORIES = {
    "sglang": "sgl-project/sglang",
    "miles": "radixark/miles",
    "megatron": "NVIDIA/Megatron-LM",
}
STATES = ("open", "merged", "closed", "unsent")
ORIGINS = ("upstream", "vendor")
_KEY = re.compile(rf"({'|'.join(UPSTREAMS)})(#\d+|/[a-z0-9-]+)")
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


@dataclass(frozen=True, slots=True)
class Row:
    """One row; the fields are those of the file, and empty where it has none."""

    key: str
    title: str
    state: str
    last_update: str
    description: str
    opened: str = ""
    merged: str = ""
    applied_upstream: str = ""
    origin: str = "upstream"
    forwarded: str = ""
    probe: Condition | None = None
    probe_from: str = ""
    bindings: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    @property
    def upstream(self) -> str:
        """Whose trees can have it."""
        return re.split("[#/]", self.key)[0]

    @property
    def number(self) -> int | None:
        """The pull request's or issue's, where it is known."""
        _, hash_sign, number = self.key.partition("#")
        return int(number) if hash_sign else None

    @property
    def url(self) -> str:
        """Its page, or an empty string; an issue's is reached by the same address."""
        return (
            f"https://github.com/{REPOSITORIES[self.upstream]}/pull/{self.number}"
            if self.number
            else ""
        )

    @property
    def every_binding(self) -> tuple[str, ...]:
        """The names of all bindings of ours that it bears on."""
        return (*self.replaces, *self.bindings)


def folder() -> Path:
    """Where the ledger's files are."""
    return Path(__file__).with_name("ledger")


@lru_cache(maxsize=1)
def ledger() -> Mapping[str, Row]:
    """Key to row; ValueError names the file, the row and what is wrong with it."""
    rows: dict[str, Row] = {}
    for path in sorted(folder().glob("*.toml")):
        for key, part in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if not key.startswith(path.stem):
                raise ValueError(f"{path.name}: {key} belongs into another file")
            rows[key] = row_from(key, part)
    return rows


def row_from(key: str, part: Mapping[str, Any]) -> Row:
    """The row that a table of the ledger is; ValueError on what is missing or malformed."""
    values = {name.replace("-", "_"): value for name, value in part.items()}
    try:
        probe = condition_from(values.pop("probe")) if "probe" in values else None
        for name in ("bindings", "replaces"):
            values[name] = tuple(values.get(name, ()))
        row = Row(key=key, probe=probe, **values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {error}") from error
    problems = list(_problems(row))
    if problems:
        raise ValueError(f"{key}: {'; '.join(problems)}")
    return row


def _problems(row: Row):
    if not _KEY.fullmatch(row.key):
        yield "the key is neither upstream#number nor upstream/words"
    if row.state not in STATES:
        yield f"the state {row.state!r} is none of {', '.join(STATES)}"
    if row.origin not in ORIGINS:
        yield f"the origin {row.origin!r} is none of {', '.join(ORIGINS)}"
    for name in ("opened", "merged", "last_update"):
        if (date := getattr(row, name)) and not _DATE.fullmatch(date):
            yield f"{name.replace('_', '-')} {date!r} is no date such as 2026-11-30"
    unsent = row.state == "unsent"
    if unsent != bool(re.match(r"no$|not-needed: .", row.forwarded)):
        yield "forwarded = 'no' or 'not-needed: why' belongs to an unsent row, and only there"
    if not unsent and row.probe is None:
        yield "it has no probe"
    if row.state in {"open", "closed"} and not row.probe_from:
        yield "it is not merged, and probe-from does not say what its names were read from"
    if row.state == "merged" and not row.applied_upstream:
        yield "it is merged, and applied-upstream does not say where"


def replacements() -> tuple[Replacement, ...]:
    """Every row that makes bindings of ours needless where a tree has it."""
    return tuple(
        Replacement(row.key, row.upstream, row.probe, row.replaces)
        for row in ledger().values()
        if row.probe is not None and row.replaces
    )
