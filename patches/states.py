"""How a patch set stands in a checkout: applied, ready, in conflict, or not applicable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.patches.codemod import PointInFile, check


@dataclass(frozen=True, slots=True)
class Applied:
    """Every binding point stands where it belongs."""

    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """Not applied, and can be: every target is of a known shape, and was found by the codemod.

    without: targets of no known shape; what only some setting or run binds there is left out.
    """

    files: tuple[str, ...]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file is not what the patch set is for; nothing is written."""

    file: str
    target: str
    expected: str
    found: str
    remedy: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """There is nothing to patch in this checkout, and why."""

    reason: str


State = Applied | Ready | Conflict | NotApplicable
WORDS = {
    Applied: "applied",
    Ready: "not applied",
    Conflict: "in conflict",
    NotApplicable: "not applicable",
}


def state_of(
    points: Sequence[PointInFile], sources: Mapping[str, bytes], without: Sequence[str] = ()
) -> Applied | Ready | Conflict:
    """How a patch set with these points stands in these files, by what is in them."""
    files = tuple(dict.fromkeys(each.file for each in points))
    missing = [each for each in points if not each.is_in(sources[each.file])]
    if not missing:
        return Applied(files)
    marked = [each for each in points if each.is_marked_in(sources[each.file])]
    if marked:
        return _in_part(missing[0], len(points) - len(missing), len(points))
    try:
        check(points, sources)
    except PeriodicError as error:
        parts = error.parts
        file = next((e.file for e in points if parts["target"] in (e.file, *e.targets)), files[0])
        return Conflict(file, parts["target"], parts["expected"], parts["found"], parts["remedy"])
    return Ready(files, tuple(without))


def _in_part(missing: PointInFile, there: int, wanted: int) -> Conflict:
    return Conflict(
        missing.file,
        f"the binding point of {missing.feature}",
        f"{', '.join(missing.names)} at it, as this miles-periodic writes it",
        f"{there} of {wanted} points are so: another one wrote them, or they were changed",
        f"Run: miles patches revert {missing.feature} --checkout DIR, and apply it again.",
    )
