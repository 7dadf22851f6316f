"""Servers as they are started, and requests as they are routed to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a server refuses to start with beside some other argument.

    argument: name of a field of SGLang's ServerArgs.
    allowed: its only values that are taken; None where any but those in `refused` are.
    refused: values that are not taken; True stands for any that is set.
    where: file and line of the tree that says so, or empty.
    """

    argument: str
    allowed: tuple[Any, ...] | None = None
    refused: tuple[Any, ...] = ()
    where: str = ""

    def refuses(self, value: Any) -> bool:
        """Whether `value` is one that the server would not start with."""
        if self.allowed is not None:
            return value not in self.allowed
        return any(bool(value) if bad is True else value == bad for bad in self.refused)


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """One group of equal SGLang servers, as Miles is about to start them.

    role: `regular`, `prefill` or `decode`.
    arguments: fields of ServerArgs by name, as far as the run sets them.
    refusals_beside: argument to what this tree of SGLang refuses to start with beside it.
    prefill_returns_routes: whether this tree's prefill servers answer with a prompt's routes.
    stands_still: whether this tree's servers of that role compute nothing while they are paused.
    """

    role: str
    arguments: Mapping[str, Any]
    refusals_beside: Callable[[str], Sequence[Refusal]] = lambda argument: ()
    prefill_returns_routes: bool = True
    stands_still: bool = True


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request that a router has before it.

    number: unique in the router's process.
    path: `/generate` or an OpenAI path.
    tokens: the prompt's token ids as an `array` of 64-bit integers; empty where it is text.
    salt: everything that keeps its KV apart from that of other requests (`extra_key`, adapter).
    """

    number: int
    path: str
    tokens: Sequence[int] = ()
    salt: str = ""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What is known of a server when a request is routed; read from it within the last seconds.

    queue_depth: requests that wait in the server. running_requests: requests in its batch.
    kv_use: share of its KV cache that is in use, 0 to 1; of its fullest rank where it has several.
    load: requests of this router that it has not answered yet; exact, not read.
    prefix_tokens: the request's first tokens that it is expected to hold in its KV cache.
    weight_version: as it reports it, or None.
    """

    url: str
    queue_depth: int = 0
    running_requests: int = 0
    kv_use: float = 0.0
    load: int = 0
    prefix_tokens: int = 0
    weight_version: str | None = None


@dataclass(frozen=True, slots=True)
class RoutedAnswer:
    """What became of a routed request; a count is None where the response does not say it.

    status: the HTTP status, or None where the server could not be reached.
    """

    url: str
    status: int | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
