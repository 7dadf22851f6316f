"""The order of weight versions: Miles counts its updates, and tells the servers the count.

A server that was started anew reports a name, such as `default`, until it is updated.
"""

from __future__ import annotations


def is_count(version: str) -> bool:
    """Whether a weight version is a count of updates, and not a name."""
    return version.isascii() and version.isdigit()


def is_older(version: str, than: str) -> bool:
    """Whether a weight version is an earlier one; a name comes before every number.

    Two names have no order.
    """
    if not is_count(than):
        return False
    return not is_count(version) or int(version) < int(than)


def newer(one: str | None, other: str | None) -> str | None:
    """The later of two weight versions, either of which may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return other if is_older(one, other) else one
