"""What the driver binds: the parsed command line and the muster."""

from __future__ import annotations

from miles_periodic.compat.binding import Binding

_ADAPTERS = "miles_periodic.compat.bindings"

BINDINGS = (
    Binding(
        name="launch/arguments",
        upstream="miles",
        target="miles.utils.arguments:parse_args",
        adapter=f"{_ADAPTERS}.arguments:complete",
        processes=("driver",),
    ),
    Binding(
        name="launch/muster",
        upstream="miles",
        target="miles.ray.placement_group:create_training_models",
        adapter=f"{_ADAPTERS}.muster:call",
        processes=("driver",),
    ),
)
