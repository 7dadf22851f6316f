"""How far two sequences of tokens agree."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    limit = min(len(one), len(other))
    # Lists are compared in C, and nearly always equal; a list and a tuple never are.
    if _listed(one)[:limit] == _listed(other)[:limit]:
        return limit
    return next(index for index in range(limit) if one[index] != other[index])


def _listed(tokens: Sequence[int]) -> list[int]:
    return tokens if isinstance(tokens, list) else list(tokens)
