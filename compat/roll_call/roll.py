"""The launcher's record: which process reported what, and what is missing."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from miles_periodic.compat.binding import Binding
from miles_periodic.compat.roll_call.roles import (
    ROLES_OF_A_RUN,
    ROLES_OF_SOME_RUNS,
    role_of,
    title_of,
)


@dataclass(slots=True)
class Entry:
    """One process of the run.

    in_sources: those of the applied bindings that are patched into the sources that it runs.
    """

    host: str
    pid: int
    title: str
    alive: bool = True
    applied: list[str] = field(default_factory=list)
    consulted: dict[str, int] = field(default_factory=dict)
    in_sources: set[str] = field(default_factory=set)

    @property
    def is_local(self) -> bool:
        return self.host == socket.gethostname()

    def refresh_title(self) -> None:
        """Take the title that this node's process table shows now: Ray sets it late."""
        if self.is_local and self.alive:
            self.title = title_of(self.pid) or self.title


@dataclass(frozen=True, slots=True)
class Failure:
    """A binding that is not in place where it should be."""

    binding: str
    process: str
    reason: str

    def __str__(self) -> str:
        return f"{self.binding} in {self.process}: {self.reason}"


class Roll:
    """All entries of one run, in the order of their hellos."""

    def __init__(self, bindings: Sequence[Binding]) -> None:
        self.bindings = tuple(bindings)
        self.entries: list[Entry] = []
        self.failures: list[Failure] = []
        self.driver_pid: int | None = None
        self.was_mustered = False
        self.roles_not_had = set(ROLES_OF_SOME_RUNS)

    def role(self, entry: Entry) -> str:
        """The entry's role now; the launcher's own child is the driver."""
        if entry.is_local and entry.pid == self.driver_pid:
            return "driver"
        return role_of(entry.title)

    def expect(self, roles: Sequence[str]) -> None:
        """Ask for some roles, too, that not every run has."""
        self.roles_not_had -= set(roles)

    def missing(self) -> list[str]:
        """Bindings that no process of an expected role applied, one sentence each."""
        absent = []
        for entry in self.entries:
            entry.refresh_title()
        for binding in self.bindings:
            for role in binding.processes:
                if role in self.roles_not_had:
                    continue
                if not any(binding.name in e.applied for e in self.entries if self.role(e) == role):
                    absent.append(f"{binding.name} was not applied in any {role}")
        return absent

    @property
    def anything_applied(self) -> bool:
        """Whether any process of the run applied any binding."""
        return any(entry.applied for entry in self.entries)

    def never_applied(self) -> list[str]:
        """Bindings that no process of the run applied, whatever its role."""
        applied = {name for entry in self.entries for name in entry.applied}
        return [binding.name for binding in self.bindings if binding.name not in applied]

    def never_consulted(self) -> list[str]:
        """Bindings that every run calls, were applied, and that no process called in this one."""
        called = {name for entry in self.entries for name in entry.consulted}
        applied = {name for entry in self.entries for name in entry.applied}
        return [b.name for b in self.bindings if b.name in applied - called and not b.only_when]

    def rows(self) -> list[dict[str, object]]:
        """The processes that have a part in the run, as plain rows for tables and JSON.

        Those that applied or consulted a binding, and those whose title shows a role.
        """
        return [
            {
                "host": entry.host,
                "pid": entry.pid,
                "role": self.role(entry),
                "title": entry.title[:80],
                "applied": sorted(entry.applied),
                "consulted": dict(sorted(entry.consulted.items())),
                "in_sources": sorted(entry.in_sources),
            }
            for entry in self.entries
            if entry.applied or entry.consulted or self.role(entry) in ROLES_OF_A_RUN
        ]
