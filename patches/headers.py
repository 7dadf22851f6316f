"""The header of each patch set, as data: `UPSTREAM/FEATURE/header.toml`.

what           what the patched sources do
why            what that is for
pull-requests  keys of the ledger: what upstreams do about it, and what it stands in for
applies-to     releases, as the matrix names them, and branches, as `miles main`
exit           what must be true upstream for the patch set to be deleted
nothing        instead of all others but pull-requests: why the feature patches nothing there
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from miles_periodic.hooks.decisions import UPSTREAMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Header:
    """One patch set: a feature on an upstream; the fields are those of the file."""

    upstream: str
    feature: str
    what: str = ""
    why: str = ""
    pull_requests: tuple[str, ...] = ()
    applies_to: tuple[str, ...] = ()
    exit: str = ""
    nothing: str = ""

    @property
    def name(self) -> str:
        """`upstream/feature`, as messages and files have it."""
        return f"{self.upstream}/{self.feature}"


@lru_cache(maxsize=1)
def headers() -> tuple[Header, ...]:
    """Every header, by upstream and feature; ValueError names the file and what is wrong."""
    folder = Path(__file__).parent
    found = [
        header_from(upstream, path.parent.name, tomllib.loads(path.read_text(encoding="utf-8")))
        for upstream in UPSTREAMS
        for path in sorted((folder / upstream).glob("*/header.toml"))
    ]
    return tuple(found)


def header_from(upstream: str, feature: str, part: Mapping[str, Any]) -> Header:
    """The header that a file is; ValueError on what is missing or unknown."""
    values = {name.replace("-", "_"): value for name, value in part.items()}
    for name in ("pull_requests", "applies_to"):
        values[name] = tuple(values.get(name, ()))
    known = {field.name for field in fields(Header)} - {"upstream", "feature"}
    wanted = {"nothing"} if "nothing" in values else {"what", "why", "applies_to", "exit"}
    unknown = {name for name, value in values.items() if value and name not in known}
    missing = {name for name in wanted if not values.get(name)}
    beside = {n for n in ("what", "why", "applies_to", "exit") if values.get(n)} - wanted
    if unknown | missing | beside:
        problems = {"unknown": unknown, "missing": missing, "beside nothing": beside}
        said = (f"{what}: {', '.join(sorted(names))}" for what, names in problems.items() if names)
        raise ValueError(f"{upstream}/{feature}/header.toml: {'; '.join(said)}")
    return Header(upstream, feature, **values)
