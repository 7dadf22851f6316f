"""What a CPU stand-in is, and how one takes the place of an upstream name.

A stand-in never creates a name: an upstream that renamed its target must be noticed, because a
run that quietly goes on with the GPU path fails much later and far from the cause.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from miles_periodic.hooks.errors import PeriodicError

TRAINER_VARIABLE = "MILES_PERIODIC_CPU_TRAINER"
"""Set to 1 in the environment of train actors, through Miles's --train-env-vars."""

Process = Literal["every", "trainer"]


@dataclass(frozen=True)
class StandIn:
    """One upstream module and what is put into it right after it executed.

    name: unique, `subject/what`.
    module: the module that defines the target.
    apply: called with that module, once per process; raises PeriodicError when a target is gone.
    why: one sentence: what fails on a CPU without it.
    process: `every`, or `trainer` for those that are for train actors only.
    """

    name: str
    module: str
    apply: Callable[[ModuleType], None]
    why: str
    process: Process = "every"

    def belongs(self, environment: dict[str, str]) -> bool:
        """Whether a process with this environment wants it."""
        return self.process == "every" or environment.get(TRAINER_VARIABLE) == "1"


def owner_of(module: ModuleType, target: str) -> tuple[Any, str]:
    """The object that holds `target` (a dotted name inside `module`), and the last name.

    Raises PeriodicError when any part of the name is missing.
    """
    *path, last = target.split(".")
    owner: Any = module
    for name in path:
        owner = _existing(module, owner, name, target)
    _existing(module, owner, last, target)
    return owner, last


def replace(module: ModuleType, target: str, make: Callable[[Any], Any]) -> None:
    """Put `make(native)` where `target` (a dotted name inside `module`) is."""
    owner, name = owner_of(module, target)
    native = getattr(owner, name)
    replacement = make(native)
    if callable(native) and not isinstance(native, type) and not isinstance(replacement, type):
        functools.update_wrapper(replacement, native)
    setattr(owner, name, replacement)


def _existing(module: ModuleType, owner: Any, name: str, target: str) -> Any:
    if not hasattr(owner, name):
        raise PeriodicError(
            "A CPU stand-in has nothing to stand in for.",
            target=f"{module.__name__}:{target}",
            expected=f"an attribute {name!r} of {getattr(owner, '__name__', owner)!r}",
            found="no such attribute",
            remedy="Install the miles-rl release that the [rehearsal] extra pins, or bring "
            "compat/cpu/ up to this one.",
        )
    return getattr(owner, name)
