"""Times that `bench pbox` took: their quantiles beside their goals, and their pictures."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from miles_periodic.cli.bench.plots import Row, draw, quantiles

#: Each on an idle machine: medians, and where two are named, the 99th percentile behind it.
GOALS_MS = {
    "claim + first command": "25",
    "1 MiB up and down, of 100": "5",
    "start without a pool": "300, 500",
    "all of a killed job's 4 sandboxes gone": "1000",
}
ROUND_TRIP = "1 MiB up and down"
ROUND_TRIP_OVER_HTTP = "1 MiB up and down over HTTP"
#: What is drawn together.
OPERATIONS = {
    "from the pool": ("claim", "first command", "claim + first command"),
    "without a pool": ("start without a pool", "start without a pool + first command"),
    "a sandbox that runs": ("command", "python command", "destroy"),
    "beside it": ("a plain process", "bwrap", "runsc exec", "1 MiB up and down by runsc exec"),
    "at the end of a job": ("all of a killed job's 4 sandboxes gone",),
}
OPERATIONS_FILE, NUMBERS_FILE = "pbox-operations.svg", "pbox-numbers.svg"


@dataclass(slots=True)
class Times:
    """Milliseconds of each thing that was done, by its name."""

    of: dict[str, list[float]] = field(default_factory=dict)

    async def take(self, name: str, doing: Awaitable[Any]) -> Any:
        """Await something and note how long it took."""
        started = time.perf_counter()
        done = await doing
        self.note(name, time.perf_counter() - started)
        return done

    def note(self, name: str, seconds: float) -> None:
        """Note a time that was taken elsewhere."""
        self.of.setdefault(name, []).append(seconds * 1e3)

    def rows(self) -> list[dict[str, Any]]:
        """Quantiles by name, in milliseconds."""
        return [_quantiles(name, ms) for name, ms in self.of.items()]


def _quantiles(name: str, ms: list[float]) -> dict[str, Any]:
    p50, p90, p99 = quantiles(ms)
    goal = GOALS_MS.get(name, "")
    return {"what": name, "times": len(ms), "p50": p50, "p90": p90, "p99": p99, "goal": goal}


def pictures(times: Times, numbers: list[int]) -> dict[str, str]:
    """SVG by file name: each operation, and those whose cost may grow with the sandboxes."""
    by_number = [
        (each, [_row(times, f"{each}, of {number}", f"of {number}") for number in numbers])
        for each in (ROUND_TRIP, ROUND_TRIP_OVER_HTTP, "command")
    ]
    operations = [
        (name, [row for each in of_group if (row := _row(times, each, each))])
        for name, of_group in OPERATIONS.items()
    ]
    return {
        OPERATIONS_FILE: draw("What a sandbox costs", operations),
        NUMBERS_FILE: draw("Where so many sandboxes live", by_number),
    }


def _row(times: Times, name: str, label: str) -> Row | None:
    if name not in times.of:
        return None
    goal = GOALS_MS.get(name, "").partition(",")[0]
    return Row(label, times.of[name], float(goal) if goal else None)
