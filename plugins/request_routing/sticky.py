"""Typed routing keys, and what is decided by them alone: a rank, and a tie between servers."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

#: Every key of ours starts with this, so that no client's own key can be one of ours.
NAMESPACE = "miles-periodic"


def key_of(kind: str, identity: str, client_key: str | None = None) -> str:
    """The routing key of a rollout or session.

    client_key: a key that the client sent; it stays a part of ours, behind a length, so that no
    two pairs give one text, and two clients that send the same key are still told apart.
    """
    key = f"{NAMESPACE}:{kind}={len(identity)}:{identity}"
    return key if client_key is None else f"{key};client={client_key}"


def rank_of(identity: str, num_ranks: int) -> int:
    """The rank 0 to num_ranks - 1 that an id falls on, the same in every process."""
    return _digest(identity) % num_ranks


def first_by_key(key: str, urls: Iterable[str]) -> str:
    """The url that a key falls on (highest random weight): when one leaves, only its keys move."""
    return max(urls, key=lambda url: (_digest(f"{key}\0{url}"), url))


def _digest(text: str) -> int:
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
