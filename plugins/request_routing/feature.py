"""The hooks of request-routing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_periodic.hooks import (
    Feature,
    PeriodicError,
    RolloutState,
    RoutedAnswer,
    RoutedRequest,
    ServerState,
    hookimpl,
)
from miles_periodic.plugins.request_routing.prefix_index import Expectation, Path, PrefixIndex
from miles_periodic.plugins.request_routing.scoring import Weights, best_server
from miles_periodic.plugins.request_routing.settings import SLUG, RequestRoutingSettings
from miles_periodic.plugins.request_routing.sticky import key_of, rank_of
from miles_periodic.plugins.request_routing.turns import Turn, Turns

#: Requests whose path is kept between the hooks that one request passes; far more than are open.
MAX_OPEN_REQUESTS = 1 << 14


@dataclass(slots=True)
class _Open:
    """A request between its routing and its answer."""

    path: Path
    expected: dict[str, Expectation]
    time: int = 0


class RequestRouting(Feature):
    """A rollout's turns go where its prefix is, unless another server is worth more."""

    slug = SLUG
    why = "Every turn of a rollout finds the KV of the turns before it, wherever a policy routes."
    settings_model = RequestRoutingSettings
    pull_requests = ("miles#1690", "miles#1703", "miles#2012", "miles#1807")
    exit = "Miles sends a key with every request, and its routers weigh prefixes against load."

    def __init__(self, settings: RequestRoutingSettings | None = None) -> None:
        super().__init__(settings)
        self.index = PrefixIndex(self.settings.block_tokens, self.settings.index_tokens)
        self.turns = Turns(self.settings.max_rollouts)
        self._open: OrderedDict[int, _Open] = OrderedDict()
        own = self.settings
        self._weights = Weights(own.prefix_weight, own.queue_weight, own.kv_weight, own.load_weight)

    @hookimpl
    def complete_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        policy = self.settings.router_policy
        if not policy:
            return None
        if arguments.get("use_miles_router"):
            raise PeriodicError(
                "Miles's Python router has no policies.",
                feature=SLUG,
                target=f"{SLUG}.router_policy",
                expected="a run with the Rust router",
                found="--use-miles-router",
                remedy=f"Leave {SLUG}.router_policy empty, or drop --use-miles-router.",
            )
        named = ("sglang_router_policy", "router_prefill_policy", "router_decode_policy")
        if any(arguments.get(name) for name in named):
            return None
        return {"sglang_router_policy": policy}

    @hookimpl(trylast=True)
    def routing_key(self, rollout_id: str, kind: str, client_key: str | None) -> str | None:
        return key_of(kind, rollout_id, client_key) if self.settings.sticky_keys else None

    @hookimpl(trylast=True)
    def data_parallel_rank(self, rollout: RolloutState, num_ranks: int) -> int | None:
        return rank_of(rollout.rollout_id, num_ranks) if self.settings.sticky_ranks else None

    @hookimpl(trylast=True)
    def expected_prefix_tokens(
        self, request: RoutedRequest, rollout_key: str | None, urls: Sequence[str]
    ) -> Mapping[str, int] | None:
        path = self.index.path(request.salt, request.tokens)
        expected = {url: self.index.expected(url, path) for url in urls}
        self._open[request.number] = _Open(path, expected)
        while len(self._open) > MAX_OPEN_REQUESTS:
            self._open.popitem(last=False)
        tokens = {url: expectation.num_tokens for url, expectation in expected.items()}
        return tokens | self._of_last_turn(request, rollout_key, tokens)

    def _of_last_turn(
        self, request: RoutedRequest, key: str | None, tokens: Mapping[str, int]
    ) -> dict[str, int]:
        """What the server of a key's last turn holds of it, where that is more than by blocks."""
        turn = self.turns.last(key) if key else None
        if turn is None or turn.url not in tokens or self.index.is_forgotten(turn.url, turn.time):
            return {}
        held = min(turn.num_tokens, len(request.tokens) or turn.num_tokens)
        return {turn.url: max(tokens[turn.url], held)}

    @hookimpl(trylast=True)
    def server_for_request(
        self, request: RoutedRequest, rollout_key: str | None, servers: Sequence[ServerState]
    ) -> str | None:
        if not self.settings.score_servers:
            return None
        return best_server(servers, self._weights, rollout_key or request.salt)

    @hookimpl
    def request_routed(self, request: RoutedRequest, rollout_key: str | None, url: str) -> None:
        if request.number not in self._open:
            self._open[request.number] = _Open(self.index.path(request.salt, request.tokens), {})
        current = self._open[request.number]
        current.time = self.index.sent(url, current.path)

    @hookimpl
    def request_answered(
        self, request: RoutedRequest, rollout_key: str | None, answer: RoutedAnswer
    ) -> None:
        current = self._open.pop(request.number, None)
        if answer.status is None:
            self.index.forget(answer.url)
        if current is None or answer.status is None:
            return
        before = current.expected.get(answer.url, Expectation())
        self.index.answered(answer.url, current.time, before, answer.cached_tokens)
        if rollout_key and answer.prompt_tokens is not None:
            num_tokens = answer.prompt_tokens + (answer.completion_tokens or 0)
            self.turns.note(rollout_key, Turn(answer.url, current.time, num_tokens))
