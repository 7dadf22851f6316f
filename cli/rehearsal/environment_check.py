"""Whether this Python can rehearse at all, before anything is made or started."""

from __future__ import annotations

import importlib.util

from miles_periodic.hooks.errors import PeriodicError

#: Import names of what a rehearsal runs.
NEEDED = ("torch", "ray", "transformers", "miles", "sglang", "megatron", "mooncake")


def check_environment() -> None:
    """Raise PeriodicError where parts of the rehearsal's stack are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PeriodicError(
            "The rehearsal's stack is not installed in this Python.",
            expected=", ".join(NEEDED),
            found=f"no {', '.join(missing)}",
            remedy="Run `make rehearse` in a checkout, or "
            "`pip install 'miles-periodic[rehearsal]'`.",
        )
