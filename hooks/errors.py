"""The one kind of error a user sees: what was asked, where it failed, and what to change."""

from __future__ import annotations

USAGE_STATUS = 2
ROLL_CALL_STATUS = 3


class PeriodicError(Exception):
    """Something that the user can change stopped us: nothing computes on what is wrong.

    Every part but `problem` may be empty; `remedy` starts with a verb. The command line prints
    the parts one per line and exits with `status`.
    """

    status = USAGE_STATUS

    def __init__(
        self,
        problem: str,
        *,
        remedy: str = "",
        feature: str = "",
        tree: str = "",
        target: str = "",
        expected: str = "",
        found: str = "",
    ) -> None:
        self.problem = problem
        self.parts = {
            "feature": feature,
            "tree": tree,
            "target": target,
            "expected": expected,
            "found": found,
            "remedy": remedy,
        }
        super().__init__(str(self))

    def __str__(self) -> str:
        known = [f"  {name + ':':<10}{text}" for name, text in self.parts.items() if text]
        return "\n".join([self.problem, *known])

    def __reduce__(self):
        return _rebuild, (type(self), self.problem, self.parts)


def _rebuild(kind: type[PeriodicError], problem: str, parts: dict[str, str]) -> PeriodicError:
    return kind(problem, **parts)


class RollCallError(PeriodicError):
    """A process did not do what the plan says; the run was ended."""

    status = ROLL_CALL_STATUS
