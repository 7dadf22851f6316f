"""Where the last turn of each rollout went, and how many tokens it had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """The last answered request under one key: where, when, and prompt plus completion tokens."""

    url: str
    time: int
    num_tokens: int


class Turns:
    """Key to its last turn, at most `max_rollouts`; the least recently used ones go."""

    def __init__(self, max_rollouts: int) -> None:
        self.max_rollouts = max_rollouts
        self._turns: dict[str, Turn] = {}

    def last(self, key: str) -> Turn | None:
        """The last turn under a key, or None."""
        return self._turns.get(key)

    def note(self, key: str, turn: Turn) -> None:
        """Remember a key's turn as its last one."""
        self._turns.pop(key, None)
        self._turns[key] = turn
        while len(self._turns) > self.max_rollouts:
            del self._turns[next(iter(self._turns))]

    def __len__(self) -> int:
        return len(self._turns)
