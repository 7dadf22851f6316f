"""A fleet of servers that keep prefixes, and the rollouts that talk to it: a model, not a server.

A server holds whole sequences up to its capacity, the least recently used ones go. A request takes
the time of its prefill and its decoding, slower the more of them run together.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

PREFILL_TOKENS_PER_SECOND = 20_000.0
DECODE_TOKENS_PER_SECOND = 60.0
MAX_RUNNING = 64
READ_INTERVAL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rollouts in groups that share a prompt; every turn adds what was generated and a tool's text.

    num_open: rollouts that run at once. capacity_tokens: KV cache of one server.
    """

    num_servers: int = 64
    num_rollouts: int = 10_000
    group_size: int = 8
    num_turns: int = 6
    prompt_tokens: int = 1024
    turn_tokens: int = 512
    num_open: int = 2048
    capacity_tokens: int = 400_000
    seed: int = 0


@dataclass(slots=True)
class Server:
    """sequence to its tokens, least recently used first; what was last read of its load."""

    held: dict[tuple[str, int], int] = field(default_factory=dict)
    held_tokens: int = 0
    num_open: int = 0
    read_queue: int = 0

    def reuse(self, rollout: int, group: int, prompt_tokens: int) -> int:
        """The tokens of a prompt that it holds, its own last turn or its group's prompt."""
        own = self.held.get(("rollout", rollout), 0)
        return min(prompt_tokens, own or self.held.get(("group", group), 0))

    def keep(self, sequence: tuple[str, int], num_tokens: int, capacity_tokens: int) -> None:
        """Hold a sequence, and let go of the least recently used ones beyond the capacity."""
        self.held_tokens += num_tokens - self.held.pop(sequence, 0)
        self.held[sequence] = num_tokens
        while self.held_tokens > capacity_tokens:
            self.held_tokens -= self.held.pop(next(iter(self.held)))


@dataclass(slots=True)
class Rollout:
    """number, its group, the turn it is at, and its tokens so far."""

    number: int
    group: int
    tokens: array
    turn: int = 0


@dataclass(slots=True)
class Outcome:
    """prefilled: tokens that were computed though an ideal fleet holds them; turns: requests."""

    reusable_tokens: int = 0
    reused_tokens: int = 0
    num_turns: int = 0
    num_moved: int = 0
    most_open: float = 0.0
    seconds: float = 0.0

    @property
    def reuse_rate(self) -> float:
        """Share of the tokens of earlier turns that were not computed again."""
        return self.reused_tokens / max(1, self.reusable_tokens)


#: rollout, servers -> number of the server; and what it is told of the answer: cached tokens.
Choose = Callable[[Rollout, list[Server]], int]
Told = Callable[[Rollout, int, int], None]


def simulate(traffic: Traffic, choose: Choose, told: Told = lambda *answer: None) -> Outcome:
    """Run all rollouts of a traffic; the same traffic whatever the choice is."""
    chance = random.Random(traffic.seed)
    servers = [Server() for _ in range(traffic.num_servers)]
    waiting = [_rollout(traffic, chance, number) for number in range(traffic.num_rollouts)]
    waiting.reverse()
    num_open = min(traffic.num_open, traffic.num_rollouts)
    events = [(chance.random(), n, "start", waiting.pop()) for n in range(num_open)]
    heapq.heapify(events)
    outcome, order, last, next_reading = Outcome(), num_open, {}, 0.0
    while events:
        now, _, kind, what = heapq.heappop(events)
        if now >= next_reading:
            next_reading = now + READ_INTERVAL_SECONDS
            for server in servers:
                server.read_queue = max(0, server.num_open - MAX_RUNNING)
        if kind == "start":
            number = choose(what, servers)
            took = _serve(traffic, servers[number], what, outcome, last.get(what.number), number)
            told(what, number, took[1])
            last[what.number] = number
            following = (now + took[0], "end", (what, number))
        else:
            following = _finish(traffic, servers, chance, waiting, *what)
            following = following and (now + following[0], "start", following[1])
            outcome.seconds = now
        if following:
            order += 1
            heapq.heappush(events, (following[0], order, following[1], following[2]))
    return outcome


def _rollout(traffic: Traffic, chance: random.Random, number: int) -> Rollout:
    group = number // traffic.group_size
    prompt = random.Random(group).choices(range(100_000), k=traffic.prompt_tokens)
    return Rollout(number, group, array("q", prompt))


def _serve(
    traffic: Traffic,
    server: Server,
    rollout: Rollout,
    outcome: Outcome,
    before: int | None,
    number: int,
) -> tuple[float, int]:
    """Seconds of a request, and its cached tokens."""
    num_tokens = len(rollout.tokens)
    reuse = server.reuse(rollout.number, rollout.group, num_tokens)
    if before is not None:
        outcome.reusable_tokens += num_tokens - traffic.turn_tokens // 2
        outcome.reused_tokens += min(reuse, num_tokens - traffic.turn_tokens // 2)
        outcome.num_moved += before != number
    outcome.num_turns += 1
    server.num_open += 1
    outcome.most_open = max(outcome.most_open, server.num_open)
    new = traffic.turn_tokens // 2
    server.keep(("group", rollout.group), traffic.prompt_tokens, traffic.capacity_tokens)
    server.keep(("rollout", rollout.number), num_tokens + new, traffic.capacity_tokens)
    slowness = max(1.0, server.num_open / MAX_RUNNING)
    prefill = (num_tokens - reuse) / PREFILL_TOKENS_PER_SECOND * server.num_open
    return prefill + new / DECODE_TOKENS_PER_SECOND * slowness, reuse


def _finish(
    traffic: Traffic,
    servers: list[Server],
    chance: random.Random,
    waiting: list[Rollout],
    rollout: Rollout,
    number: int,
) -> tuple[float, Rollout] | None:
    """Seconds until the next request, and whose: the rollout's next turn, or another rollout."""
    servers[number].num_open -= 1
    rollout.turn += 1
    if rollout.turn == traffic.num_turns:
        return (0.0, waiting.pop()) if waiting else None
    rollout.tokens.extend(chance.choices(range(100_000), k=traffic.turn_tokens))
    return chance.expovariate(1.0), rollout
