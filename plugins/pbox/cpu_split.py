"""Two disjoint sets of the CPUs that a job was given: for what trains, and for its sandboxes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.plugins.pbox.cpu_lists import parse_cpus, written_cpus

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class CpuSplit:
    """Disjoint; together, all that was given."""

    trainer: frozenset[int]
    sandboxes: frozenset[int]


def split(num_for_sandboxes: int, topology: Path = _TOPOLOGY) -> CpuSplit:
    """Split the CPUs of this process, which Slurm has bound, by whole cores.

    Sandboxes get at least `num_for_sandboxes` CPUs, of the last cores: two threads of one core
    would not be disjoint in what they compute with. Raises PeriodicError where too few are left.
    """
    given = os.sched_getaffinity(0)
    cores = _cores(given, topology)
    taken: set[int] = set()
    while cores and len(taken) < num_for_sandboxes:
        taken |= cores.pop()
    if not cores or not taken:
        raise PeriodicError(
            f"{num_for_sandboxes} CPUs for sandboxes cannot be taken from what the job was given.",
            expected="whole cores for sandboxes, and at least one core left",
            found=f"CPUs {written_cpus(given)}",
            remedy="Ask Slurm for more CPUs (--cpus-per-task), or give fewer to sandboxes.",
        )
    return CpuSplit(frozenset(given - taken), frozenset(taken))


def _cores(cpus: Iterable[int], topology: Path) -> list[set[int]]:
    """The CPUs by core, in order; one that tells nothing of its siblings is a core of its own."""
    cores: dict[frozenset[int], set[int]] = {}
    for cpu in sorted(cpus):
        file = topology / f"cpu{cpu}/topology/thread_siblings_list"
        siblings = parse_cpus(file.read_text()) if file.exists() else frozenset({cpu})
        cores.setdefault(siblings, set()).add(cpu)
    return list(cores.values())
