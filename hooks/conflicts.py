"""Arguments that a feature cannot have beside it, and the error that names one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from miles_periodic.hooks.errors import PeriodicError


@dataclass(frozen=True, slots=True)
class Conflict:
    """An argument of Megatron or Miles; a tree that does not have it conflicts with nothing.

    argument: its name. why: one clause. allowed: its only value that is taken, or None where
    `is_refused` says which are not; without both, any that is set.
    """

    argument: str
    why: str
    allowed: Any = None
    is_refused: Callable[[Any], bool] = bool

    def is_in(self, arguments: Mapping[str, Any]) -> bool:
        if self.argument not in arguments:
            return False
        value = arguments[self.argument]
        return value != self.allowed if self.allowed is not None else self.is_refused(value)

    def error(self, feature: str, arguments: Mapping[str, Any]) -> PeriodicError:
        """The refusal of `feature` beside what `arguments` have."""
        option = f"--{self.argument.replace('_', '-')}"
        found = repr(arguments[self.argument])
        if self.allowed is None:
            expected, change = "not set, or another value", f"Leave {option} out or change it"
        else:
            expected = repr(self.allowed)
            change = (
                f"Give {option} {self.allowed}" if self.allowed is not True else f"Give {option}"
            )
        return PeriodicError(
            f"{option} does not go with {feature}: {self.why}.",
            feature=feature,
            target=option,
            expected=expected,
            found=found,
            remedy=f"{change}, or take the feature out with -{feature}.",
        )


def refuse_conflicts(
    feature: str, conflicts: Iterable[Conflict], arguments: Mapping[str, Any]
) -> None:
    """Raise PeriodicError for the first of `conflicts` that stands in `arguments`."""
    for conflict in conflicts:
        if conflict.is_in(arguments):
            raise conflict.error(feature, arguments)
