"""Delta router replay: routes cross the wire once and are never overwritten.

route_rows  the rows of one trajectory, compact and append-only
trajectory  what one rollout holds over its turns: rows, by the tokens they depend on
rank_share  what one train rank keeps: its own layers, its own positions
wire        rows as one self-describing blob, for servers that can send it
payload     what a response may carry, decoded and checked
sessions    the rows of a session's turns: asked for, counted, joined
halves      what a prefill and a decode server answered together, joined
pairs       runs with prefill servers, and what they must have
settings    the slug, and what a user can set
feature     the hooks
"""

from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError
from miles_periodic.plugins.delta_router_replay.route_rows import RouteRows

__all__ = ["RouteRows", "RouteRowsError"]
