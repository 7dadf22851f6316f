"""A quicker start of the many processes of a CPU run."""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 50, 100)


def collect_garbage_rarely() -> None:
    """Let Python look for garbage less often.

    A run starts about ten interpreters that each import the whole stack, and nothing that an
    import makes is garbage: on two cores a quarter of the import time is Python looking for some.
    Reference counting is untouched; cycles are still collected, later.
    """
    gc.set_threshold(*THRESHOLDS)
