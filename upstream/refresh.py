"""Ask GitHub about every row that has a number, and stop where it wants no more questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from miles_periodic.upstream.github import GitHub, LimitReached, NotFound, Said, Unreachable
from miles_periodic.upstream.rows import Row


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What came of asking.

    said: what is known now, of the rows that were not asked too. changed: keys whose state, title
    or date is another one than the ledger's. unknown: keys of which GitHub knows nothing.
    asked: so many rows got an answer. stopped: why not all of them did; empty where they did.
    until: where a limit stopped it, when it ends, in seconds since the epoch; else 0.
    """

    said: Mapping[str, Said]
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    asked: int = 0
    stopped: str = ""
    until: float = 0.0


def refresh(
    rows: Iterable[Row],
    github: GitHub,
    known: Mapping[str, Said],
    advance: Callable[[], None] = lambda: None,
) -> Refreshed:
    """Ask about `rows`; no answer is no error, and what was known before stays.

    known: what was heard before, which lets GitHub answer that nothing changed.
    advance: called once per row that was answered.
    """
    said, unknown, stopped, until = dict(known), [], "", 0.0
    asked = [row for row in rows if row.number]
    answered = 0
    for row in asked:
        try:
            said[row.key] = github.ask(row, known.get(row.key))
        except NotFound:
            unknown.append(row.key)
        except LimitReached as limit:
            stopped, until = "GitHub's rate limit is reached", limit.until
            break
        except Unreachable as error:
            stopped = f"GitHub cannot be reached ({error})"
            break
        answered += 1
        advance()
    changed = tuple(row.key for row in asked if row.key in said and _differs(row, said[row.key]))
    return Refreshed(said, changed, tuple(unknown), answered, stopped, until)


def _differs(row: Row, said: Said) -> bool:
    merged = bool(said.merged) and said.merged != row.merged
    return said.state != row.state or said.title != row.title or merged
