"""Hook specs that the rollout servers' own processes call."""

from __future__ import annotations

from typing import Any

from miles_periodic.hooks.feature import hookspec


@hookspec(firstresult=True)
def routed_experts_on_the_wire(rows: Any, first_row: int, num_experts: int) -> Any | None:
    """One finished request's routes as the bytes that its response carries.

    Called in each scheduler once per finished request that asked for routes. `rows` is an int32
    array (rows, num_layers, top_k), the first of which is row `first_row` of the sequence;
    `num_experts` is the model's. Returns a flat uint8 array, which crosses to the client as
    base64 text as it is, or `None` to send the int32 values. First result wins; two features
    that answer are refused when the manager is built.
    """
