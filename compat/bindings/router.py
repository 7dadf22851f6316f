"""Miles's Python router: what it has before it, which server takes it, what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.router_wire import answer_of, routed_request
from miles_periodic.compat.bindings.routing_keys import key_in
from miles_periodic.compat.bindings.server_watch import ServerWatch
from miles_periodic.compat.boot import member
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RoutedAnswer, RoutedRequest, ServerState

#: The status under which a request is closed whose client left, or that ended in another way.
CLIENT_LEFT = 499
ONE_SERVER = "request-routing: one server, so that there is nothing to choose"


@dataclass(slots=True)
class _InHand:
    """A request between its arrival and its answer; `url` once a server was chosen."""

    request: RoutedRequest
    key: str | None
    url: str | None = None


_in_hand: ContextVar[_InHand | None] = ContextVar("miles_periodic_in_hand", default=None)
#: One per router, by its identity: a process has one router, and keeps it.
_watches: dict[int, ServerWatch] = {}


def watch_of(router: Any) -> ServerWatch:
    """What is known of a router's servers; reading them starts with the first request."""
    if id(router) not in _watches:
        _watches[id(router)] = ServerWatch(router, lambda text: member().notice(text))
    return _watches[id(router)]


def observe(wrapped, instance, args, kwargs):
    """Symptom: Miles's router chooses a server before it has looked at the request.

    Trigger: any request passes through `do_proxy`. Takes down: nothing; a body that cannot be
    read is routed as the router routes it. Safe because body and headers go on as they came, and
    the response is only searched for its token counts. Upstream: radixark/miles `MilesRouter`
    counts open requests only.
    """
    return _proxied(wrapped, instance, args, kwargs)


async def _proxied(proxy: Callable[..., Awaitable[dict]], router: Any, args, kwargs) -> dict:
    if len(router.worker_request_counts) < 2:
        watch_of(router).say_once(ONE_SERVER)
        return await proxy(*args, **kwargs)
    call = inspect.signature(proxy).bind(*args, **kwargs)
    incoming, path = call.arguments["request"], call.arguments["path"]
    if call.arguments.get("body") is None:
        call.arguments["body"] = await incoming.body()
    request = routed_request(incoming.method, path, call.arguments["body"])
    if request is None:
        return await proxy(*call.args, **call.kwargs)
    watch_of(router).keep_reading()
    headers = call.arguments.get("headers")
    in_hand = _InHand(request, key_in(incoming.headers if headers is None else headers))
    token = _in_hand.set(in_hand)
    answer = None
    try:
        result = await proxy(*call.args, **call.kwargs)
        answer = answer_of(in_hand.url, result)
        return result
    except Exception as error:
        answer = _failure(watch_of(router), in_hand.url, error)
        raise
    finally:
        _in_hand.reset(token)
        _close(in_hand, answer)


def _failure(watch: ServerWatch, url: str | None, error: Exception) -> RoutedAnswer | None:
    if url is not None and watch.is_unreachable(error):
        watch.failed(url)
        return RoutedAnswer(url, None)
    return None


def _close(in_hand: _InHand, answer: RoutedAnswer | None) -> None:
    if in_hand.url is not None:
        manager().hook.request_answered(
            request=in_hand.request,
            rollout_key=in_hand.key,
            answer=answer or RoutedAnswer(in_hand.url, CLIENT_LEFT),
        )


def choose(wrapped, instance, args, kwargs):
    """Symptom: a turn goes to the server with the fewest open requests, not to its prefix.

    Trigger: `do_proxy` asks for a server. Takes down: the request, where a feature answers with a
    server that cannot be chosen. Safe because the router's own count is kept as it keeps it, dead
    servers stay out, and without two servers to choose from the router's own choice is made.
    Upstream: as `observe`.
    """
    in_hand = _in_hand.get()
    url = _chosen(instance, in_hand) if in_hand is not None else None
    if url is None:
        url = wrapped(*args, **kwargs)
    else:
        instance.worker_request_counts[url] += 1
    if in_hand is not None:
        in_hand.url = url
        manager().hook.request_routed(request=in_hand.request, rollout_key=in_hand.key, url=url)
    return url


def _chosen(router: Any, in_hand: _InHand) -> str | None:
    """The url that the features choose, or None where the router's own choice is made."""
    servers = watch_of(router).choices()
    if len(servers) < 2:
        return servers[0].url if servers else None
    asked = {"request": in_hand.request, "rollout_key": in_hand.key}
    urls = [server.url for server in servers]
    held = manager().hook.expected_prefix_tokens(**asked, urls=urls) or {}
    states = [_with_prefix(server, held.get(server.url, 0)) for server in servers]
    url = manager().hook.server_for_request(**asked, servers=states)
    if url is not None and url not in urls:
        raise PeriodicError(
            "A feature chose a server that cannot be chosen.",
            target="server_for_request",
            expected=f"one of {', '.join(urls)}",
            found=repr(url),
            remedy="Repair the feature that implements server_for_request.",
        )
    return url


def _with_prefix(server: ServerState, num_tokens: int) -> ServerState:
    return replace(server, prefix_tokens=num_tokens) if num_tokens else server
