"""The closest known name to a mistyped one, as a clause for an error message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy sentence: the nearest of `known`, or all of them when none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Write {close[0]!r} instead of {name!r}."
    if known:
        return f"Choose one of: {', '.join(known)}."
    return "Install a package that provides it; none is installed."
