"""Progress bars: one per run, a step for each phase that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

#: Phases of a run apart from its steps: start, first weight update, stop.
FIXED_PHASES = 3
#: Phases of one step: generate, train, weight update.
PHASES_PER_STEP = 3


class Progress:
    """Shows what both runs are doing, on standard error; a line per phase without a terminal."""

    def __init__(self, num_steps: int) -> None:
        self._total = FIXED_PHASES + PHASES_PER_STEP * num_steps
        self._console = Console(stderr=True, highlight=False)
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("features {task.fields[run]:<3}"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bars.stop()

    @contextmanager
    def run(self, name: str) -> Iterator[Callable[[dict[str, Any]], None]]:
        """The bar of one run; yields what to call with each phase."""
        task = self._bars.add_task("start", total=self._total, run=name)

        def on_phase(phase: dict[str, Any]) -> None:
            text = _words(phase)
            if phase["seconds"] < 0:
                self._bars.update(task, description=text)
            else:
                self._bars.advance(task)
                if not self._console.is_terminal:
                    self._console.print(f"features {name}: {text}: {phase['seconds']:.1f} s")

        yield on_phase
        self._bars.update(task, description="done", completed=self._total)
        self._bars.stop_task(task)


def _words(phase: dict[str, Any]) -> str:
    step = phase["step"]
    return phase["name"] if step is None else f"{phase['name']} {step}"
