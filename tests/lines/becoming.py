"""Waiting for what must come, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Far more than anything here takes: it ends a test that fails, never one that passes.
LIMIT_SECONDS = 120.0


def becomes(condition: Callable[[], Any], seconds: float = LIMIT_SECONDS) -> Any:
    """What `condition()` returns once that is true, or what it returns last of all.

    Whoever asserts what it waits for fails with that, not with a word on time.
    """
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return value
