"""What a machine has for sandboxes: a limit beyond it would be clamped or passed over silently."""

from __future__ import annotations

import os
from dataclasses import dataclass

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.cpu_lists import parse_cpus, written_cpus
from miles_periodic.plugins.pbox.limits import MIB, Limits
from miles_periodic.plugins.pbox.node.cgroups import Cgroups


@dataclass(frozen=True, slots=True)
class Room:
    """cpus: those that sandboxes may run on. memory_bytes: what all of them together may hold."""

    cpus: frozenset[int]
    memory_bytes: int

    def refuse_beyond(self, limits: Limits) -> None:
        """Raise PeriodicError where a sandbox's limit could never be the one that is reached.

        Its neighbours, or the whole machine, would come to an end before it did.
        """
        wanted = {
            "memory_bytes": (limits.memory_bytes, self.memory_bytes),
            "disk_bytes": (limits.disk_bytes, self.memory_bytes),
            "num_cpus": (limits.num_cpus, len(self.cpus)),
        }
        for name, (asked, most) in wanted.items():
            if asked > most:
                raise PeriodicError(
                    f"The sandboxes of this node have less than {name}={asked}.",
                    expected=f"at most {most}",
                    found=f"CPUs {written_cpus(self.cpus)}, {self.memory_bytes // MIB} MiB",
                    remedy=f"Ask for a lower {name}, or start the agent with more "
                    f"({'--cpus' if name == 'num_cpus' else '--memory-mib'}).",
                )


def room_for(cpus: str, memory_bytes: int | None, cgroups: Cgroups) -> Room:
    """What sandboxes get of this machine; all that this process may use where nothing is asked.

    cpus: a list, or empty. memory_bytes: of all sandboxes together. Raises PeriodicError where
    more is asked for than this process, or the group above the sandboxes', was given.
    """
    given, most_bytes = _given(cgroups)
    asked = parse_cpus(cpus) if cpus else given
    if not asked <= given:
        raise PeriodicError(
            f"Sandboxes cannot have the CPUs {written_cpus(asked - given)}.",
            expected=f"CPUs that this machine has and this process was given: "
            f"{written_cpus(given)}",
            found=f"--cpus {cpus}",
            remedy="Name CPUs of these; in a job, ask Slurm for more (--cpus-per-task).",
        )
    if memory_bytes is not None and memory_bytes > most_bytes:
        raise PeriodicError(
            f"Sandboxes cannot have {memory_bytes // MIB} MiB of memory.",
            expected=f"at most the {most_bytes // MIB} MiB that this machine, or the group above "
            "the sandboxes', has",
            found=f"--memory-mib {memory_bytes // MIB}",
            remedy="Give a lower --memory-mib.",
        )
    return Room(asked, most_bytes if memory_bytes is None else memory_bytes)


def _given(cgroups: Cgroups) -> tuple[frozenset[int], int]:
    """CPUs and bytes of memory: this process's, within those of the groups above the sandboxes."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cpus, memory_bytes = cgroups.above()
    own = frozenset(os.sched_getaffinity(0))
    return own & (parse_cpus(cpus) if cpus else own), min([machine_bytes, *memory_bytes])
