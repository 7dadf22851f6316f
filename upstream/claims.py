"""Whether what the ledger claims agrees with what the sources of releases show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from packaging.version import Version

from miles_periodic.upstream.rows import Row

#: A change that stands in no release has a tag (`v0.1.0`) or a branch (`main`, `dev`) here.
_RELEASE = re.compile(r"\d")


def first_release(row: Row) -> Version | None:
    """The release that a row claims to be the first with it; None where it claims none."""
    if _RELEASE.match(row.applied_upstream):
        return Version(row.applied_upstream)
    return None


def disagreements(row: Row, seen: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """What stands against a row's claim, a clause for each release that contradicts it.

    seen: releases of the upstream's own distribution, and whether the row's probe holds in each.
    """
    claimed = first_release(row)
    for version, holds in seen:
        expected = claimed is not None and Version(version) >= claimed
        if holds and not expected:
            yield f"{version} has it, {_said(row)}"
        if expected and not holds:
            yield f"{version} has it not, {_said(row)}"


def _said(row: Row) -> str:
    claimed = first_release(row)
    if claimed is not None:
        return f"while the ledger says since {claimed}"
    where = f"only {row.applied_upstream} has it" if row.applied_upstream else "nothing has it"
    return f"while the ledger says that {where}"
