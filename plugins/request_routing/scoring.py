"""Which server is worth the most to a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from miles_periodic.hooks.values import ServerState
from miles_periodic.plugins.request_routing.sticky import first_by_key


@dataclass(frozen=True, slots=True)
class Weights:
    """What a token of prefix, a waiting request, a full KV cache and an open request are worth."""

    prefix: float
    queue: float
    kv: float
    load: float

    def score(self, server: ServerState) -> float:
        """The score of a server, in prefix tokens; higher is better."""
        return (
            self.prefix * server.prefix_tokens
            - self.queue * server.queue_depth
            - self.kv * server.kv_use
            - self.load * server.load
        )


def best_server(servers: Sequence[ServerState], weights: Weights, key: str) -> str:
    """The url with the highest score; between equal ones the key decides, always alike."""
    scores = {server.url: weights.score(server) for server in servers}
    highest = max(scores.values())
    best = [url for url, score in scores.items() if score == highest]
    return best[0] if len(best) == 1 else first_by_key(key, best)
