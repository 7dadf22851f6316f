"""Lists of CPUs, as the kernel and Slurm write them: `0-2,5`."""

from __future__ import annotations

from collections.abc import Iterable


def parse_cpus(text: str) -> frozenset[int]:
    """The numbers of a list. Raises ValueError where it is none."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers:
            raise ValueError(f"{part.strip()!r} runs backwards")
        cpus |= set(numbers)
    return frozenset(cpus)


def written_cpus(cpus: Iterable[int]) -> str:
    """The list of some numbers, runs of them as ranges."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
