"""Sessions under kv-preservation: one salt from two client keys, and answers by old weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miles_periodic.hooks.weight_versions import is_older, newer


def with_one_key(request: Mapping[str, Any]) -> dict[str, Any]:
    """A chat request whose `cache_salt` and `extra_key` are one `extra_key`.

    The server joins the two without a separator, so that a client's `cache_salt` in front could
    make another version's salt out of ours; behind its length it cannot.
    """
    client_salt, key = request.get("cache_salt"), request.get("extra_key")
    if client_salt is None:
        return dict(request)
    joined = f"{len(client_salt)}:{client_salt}{key or ''}"
    return {**request, "cache_salt": None, "extra_key": joined}


@dataclass(slots=True)
class VersionsSeen:
    """The newest weight version that any answer in this process was made with."""

    newest: str | None = None

    def note(self, version: str) -> None:
        """Take the version of an answer into account."""
        self.newest = newer(self.newest, version)


def outdated(answered: str, expected: str | None) -> str | None:
    """Why an answer must not be trained on, as a sentence; None where its weights are right.

    expected: the newest version that a server had when the session made its first request.
    """
    if expected is None or not is_older(answered, expected):
        return None
    return (
        f"The server answered with the weights {answered!r}, but this session began under "
        f"{expected!r}: it was restarted and not updated yet. Send the request again."
    )
