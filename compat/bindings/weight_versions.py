"""The newest weight version that any server has reported to this process."""

from __future__ import annotations

from miles_periodic.hooks.weight_versions import is_older

_newest: str | None = None


def newest() -> str | None:
    """The newest version, or None where no server has reported one."""
    return _newest


def saw(version: object) -> None:
    """Take note of a reported version.

    Counts only go up: while an update runs, servers report two of them. Where there are only
    names, the last one stands.
    """
    global _newest
    if version is None:
        return
    text = str(version)
    if _newest is None or not is_older(text, _newest):
        _newest = text


def forget() -> None:
    """Start without any version, as a new process does."""
    global _newest
    _newest = None
