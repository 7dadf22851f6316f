"""Where one hook spec meets one upstream symbol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: wrapped, instance, args, kwargs -> result: wrapt's form of a wrapper.
Adapter = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Binding:
    """One target and the adapter that is put around it.

    name: `role/decision`, unique, such as `rollout/request-fields`; several features may need it.
    upstream: which tree the target is in.
    target: `package.module:Class.method`; the module must be the one that defines it.
    adapter: `package.module:function`, imported only in a process that imports the target.
    processes: the roles (see roll_call.roles) that have imported the target's module by the time
        the first step starts; the muster asks that a process of each applied the binding. Empty
        where the module is imported later or not on every path.
    relies_on: further targets whose shape the adapter depends on without wrapping them.
    only_when: what must happen in a run for the target to be called, such as `a request is
        retracted`; empty where every run calls it, so that silence means that it is dead.
    """

    name: str
    upstream: str
    target: str
    adapter: str
    processes: tuple[str, ...] = ()
    relies_on: tuple[str, ...] = ()
    only_when: str = ""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        return self.target.partition(":")[2]

    @property
    def targets(self) -> tuple[str, ...]:
        """Every target whose shape must be known."""
        return (self.target, *self.relies_on)
