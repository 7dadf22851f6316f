"""Delta router replay: routes cross the wire once and are never overwritten.

route_rows  the rows of one trajectory, compact and append-only
wire        rows as one self-describing blob, for servers that can send it
payload     what a response may carry, decoded and checked
halves      what a prefill and a decode server answered together, joined
settings    what a user can set
feature     the hooks
"""

from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError
from miles_periodic.plugins.delta_router_replay.route_rows import RouteRows

__all__ = ["RouteRows", "RouteRowsError"]
