"""`bench request-routing`: what rollouts compute again, and what a choice costs the router."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from miles_periodic.cli.bench.fleet import Outcome, Rollout, Server, Traffic, simulate
from miles_periodic.compat.bindings.router_wire import routed_request
from miles_periodic.compat.bindings.server_watch import ServerWatch
from miles_periodic.hooks.values import RoutedAnswer, RoutedRequest, ServerState
from miles_periodic.plugins.request_routing.feature import RequestRouting
from miles_periodic.plugins.request_routing.sticky import first_by_key, key_of

PROMPT_SIZES = (1_000, 8_000, 32_000)


def routing_command(
    rollouts: Annotated[int, typer.Option(min=64, help="Rollouts of 6 turns each.")] = 10_000,
    servers: Annotated[int, typer.Option(min=2, help="Servers of the fleet.")] = 64,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare ways to choose a server in a simulated fleet, and time the one by scores."""
    from miles_periodic.cli.bench.table import show

    traffic = Traffic(num_servers=servers, num_rollouts=rollouts, num_open=32 * servers)
    show("Which server a turn goes to", measure(traffic), json_output)


def measure(traffic: Traffic) -> dict[str, Any]:
    """One row per choice on the same traffic; microseconds of CPU per decision by prompt size."""
    scores = Scores()
    rows = [
        _row("fewest open requests (Miles)", simulate(traffic, fewest_open)),
        _row("routing key alone", simulate(traffic, by_key)),
        _row("scores", simulate(traffic, scores.choose, scores.told)),
    ]
    result: dict[str, Any] = {"rows": rows}
    result["servers"], result["rollouts"] = traffic.num_servers, traffic.num_rollouts
    result["choice_in_the_simulation_us"] = statistics.median(scores.microseconds)
    for size in PROMPT_SIZES:
        reading, choice = decision_cost(size, traffic.num_servers)
        result[f"read_a_request_of_{size}_tokens_us"] = reading
        result[f"choose_for_{size}_tokens_us"] = choice
    return result


def _row(name: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "choice": name,
        "reuse_rate": outcome.reuse_rate,
        "tokens_computed_again": outcome.reusable_tokens - outcome.reused_tokens,
        "turns_moved": outcome.num_moved / max(1, outcome.num_turns),
        "most_open_on_a_server": int(outcome.most_open),
        "model_seconds": outcome.seconds,
    }


def fewest_open(rollout: Rollout, servers: list[Server]) -> int:
    """Miles's own choice."""
    return min(range(len(servers)), key=lambda number: servers[number].num_open)


def by_key(rollout: Rollout, servers: list[Server]) -> int:
    """What a router does that looks at the key only."""
    key = key_of("rollout", f"sample-{rollout.number}")
    return int(first_by_key(key, [str(number) for number in range(len(servers))]))


class Scores:
    """The hooks of request-routing as the router's adapters call them, timed."""

    def __init__(self) -> None:
        self.feature = RequestRouting()
        self.microseconds: list[float] = []
        self._open: dict[int, RoutedRequest] = {}
        self._numbers = itertools.count()

    def choose(self, rollout: Rollout, servers: list[Server]) -> int:
        """The number of the server with the highest score."""
        request = RoutedRequest(next(self._numbers), "/generate", array("q", rollout.tokens))
        key = key_of("rollout", f"sample-{rollout.number}")
        loads = {
            f"{n:04}": (server.read_queue, server.num_open) for n, server in enumerate(servers)
        }
        states = [
            ServerState(url, queue_depth=queue, load=load) for url, (queue, load) in loads.items()
        ]
        url = _timed(self.microseconds, lambda: choose(self.feature, request, key, states))
        self._open[rollout.number] = request
        return int(url)

    def told(self, rollout: Rollout, number: int, cached_tokens: int) -> None:
        """What the answer says of the cache."""
        request = self._open.pop(rollout.number)
        key = key_of("rollout", f"sample-{rollout.number}")
        answer = RoutedAnswer(f"{number:04}", 200, len(request.tokens), cached_tokens, 256)
        self.feature.request_answered(request, key, answer)


def choose(
    feature: RequestRouting, request: RoutedRequest, key: str, servers: list[ServerState]
) -> str:
    """One decision, as the router's adapter takes it; the url of the server."""
    held = feature.expected_prefix_tokens(request, key, [server.url for server in servers])
    states = [
        replace(server, prefix_tokens=held[server.url]) if held[server.url] else server
        for server in servers
    ]
    url = feature.server_for_request(request, key, states)
    feature.request_routed(request, key, url)
    return url


def decision_cost(num_tokens: int, num_servers: int, num_runs: int = 40) -> tuple[float, float]:
    """Microseconds of CPU: reading a request's JSON, and choosing for it; medians."""
    feature = RequestRouting()
    counts = {f"http://10.0.0.{number}:30000": 0 for number in range(num_servers)}
    watch = ServerWatch(SimpleNamespace(worker_request_counts=counts, dead_workers=set()), print)
    bodies = [
        json.dumps({"input_ids": [(n * 7919 + i) % 150_000 for i in range(num_tokens)]}).encode()
        for n in range(4)
    ]
    reading, choosing = [], []
    for run in range(num_runs):
        request = _timed(
            reading, lambda run=run: routed_request("POST", "generate", bodies[run % 4])
        )
        key = f"key-{run % 4}"
        _timed(choosing, lambda r=request, k=key: choose(feature, r, k, watch.choices()))
    return statistics.median(reading), statistics.median(choosing)


def _timed(into: list[float], work: Callable[[], Any]) -> Any:
    began = time.process_time_ns()
    result = work()
    into.append((time.process_time_ns() - began) / 1e3)
    return result
