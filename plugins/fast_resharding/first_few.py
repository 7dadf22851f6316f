"""Many names in an error: the first few, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 5


def first_few(names: Sequence[str]) -> str:
    """`a, b, c, d, e and 12 more`."""
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more:,} more" if more > 0 else "")
