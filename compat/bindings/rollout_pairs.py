"""Requests for routes, sent to both servers of a pair, because no router hands on both halves."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.generate_post import Post, is_generate
from miles_periodic.compat.bindings.rollout_scope import current_rollout
from miles_periodic.compat.bindings.running_server import bootstrap_fields
from miles_periodic.hooks.errors import PeriodicError

#: Attempts of a pair before the request fails; each has a bootstrap room of its own, because the
#: half of a pair whose other half failed would wait for ever.
MAX_ATTEMPTS = 5
_RETRY_SECONDS = 1.0
_MEMORY = "compat.rollout-pairs"


@dataclass(frozen=True, slots=True)
class Servers:
    """The workers of a router, as it lists them: URL and bootstrap port, and URLs."""

    prefill: tuple[tuple[str, int | None], ...] = ()
    decode: tuple[str, ...] = ()


_servers: dict[tuple[int, str], asyncio.Task] = {}
_turn = itertools.count()
_clients: dict[int, Any] = {}


def send_to_both(wrapped, instance, args, kwargs):
    """Symptom: under prefill/decode disaggregation the routes of a prompt are garbage or missing.

    Trigger: a rollout asks for routes through a router in front of pairs; sglang-router drops the
    field, and its Python load balancer hands on the decode server's rows only. Takes down: the
    request, where a half is missing. Safe because only requests that ask for routes of a router
    with prefill workers are sent another way; they stay with one decode server over all their
    turns, and every attempt has a bootstrap room of its own. Upstream: sgl-project/sglang#22916
    (prefill's rows), nothing joins them.
    """
    return _send(wrapped, args, kwargs)


async def _send(post: Post, args, kwargs):
    call = inspect.signature(post).bind(*args, **kwargs)
    url, request = call.arguments["url"], call.arguments.get("payload")
    if not _asks_for_routes(url, request):
        return await post(*args, **kwargs)
    for attempt in itertools.count(1):
        try:
            servers = await _servers_behind(url)
            if servers.prefill:
                return await _through_pair(post, servers, request)
            break
        except PeriodicError:
            raise
        except Exception:
            _servers.pop(_key_of(url), None)  # a server may have been replaced
            if attempt == MAX_ATTEMPTS:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
    return await post(*args, **kwargs)


def _asks_for_routes(url: str, request: Any) -> bool:
    return (
        is_generate(url, request)
        and bool(request.get("return_routed_experts"))
        and "input_ids" in request
        and request.get("bootstrap_room") is None
    )


async def _servers_behind(url: str) -> Servers:
    """The workers of the router at `url`, asked until it has answered; none of one without pairs.

    Raises ConnectionError where only one half of the pairs has joined the router so far.
    """
    key = _key_of(url)
    if key not in _servers:
        _servers[key] = asyncio.ensure_future(_ask(key[1]))
    return await asyncio.shield(_servers[key])


def _key_of(url: str) -> tuple[int, str]:
    return id(asyncio.get_running_loop()), "{0.scheme}://{0.netloc}".format(urlsplit(url))


async def _ask(router: str) -> Servers:
    response = await _client().get(f"{router}/workers")
    if response.status_code in (404, 405):  # a router that knows no pairs
        return Servers()
    response.raise_for_status()
    workers = response.json().get("workers", ())
    of_role = {
        role: sorted(
            (w["url"], w.get("bootstrap_port")) for w in workers if w.get("worker_type") == role
        )
        for role in ("prefill", "decode")
    }
    if bool(of_role["prefill"]) != bool(of_role["decode"]):
        raise ConnectionError(
            f"{router} lists {len(of_role['prefill'])} prefill and {len(of_role['decode'])} "
            "decode servers; a pair needs both"
        )
    return Servers(tuple(of_role["prefill"]), tuple(url for url, _ in of_role["decode"]))


async def _through_pair(post: Post, servers: Servers, request: Mapping[str, Any]) -> Any:
    """Both halves of one request; the decode server's response, with the joined routes."""
    number = _number()
    prefill_url, bootstrap_port = servers.prefill[number % len(servers.prefill)]
    decode_url = servers.decode[number % len(servers.decode)]
    both = {**request, **bootstrap_fields(prefill_url, bootstrap_port)}
    # The prefill half has a client without a limit: if requests of one role took all of Miles's
    # connections, each would wait for its other half.
    first, second = await asyncio.gather(
        _post_once(f"{prefill_url}/generate", both),
        post(f"{decode_url}/generate", both, max_retries=1),
    )
    if "routed_experts" not in second.get("meta_info", {}) and _was_aborted(second):
        return second
    joined = manager().hook.routed_experts_of_pair(
        prefill=first, decode=second, request=both, request_id=_name(second, both)
    )
    if joined is not None:
        second["meta_info"]["routed_experts"] = joined
    return second


def _number() -> int:
    """The pair of a rollout, the same over its turns; requests outside one take turns."""
    rollout = current_rollout()
    if rollout is None:
        return next(_turn)
    if _MEMORY not in rollout.memory:
        rollout.memory[_MEMORY] = next(_turn)
    return rollout.memory[_MEMORY]


def _was_aborted(response: Mapping[str, Any]) -> bool:
    reason = response.get("meta_info", {}).get("finish_reason") or {}
    return isinstance(reason, Mapping) and reason.get("type") == "abort"


def _name(response: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    return str(response.get("meta_info", {}).get("id") or request.get("rid") or "without an id")


async def _post_once(url: str, body: Mapping[str, Any]) -> Any:
    response = await _client().post(url, json=dict(body))
    response.raise_for_status()
    return response.json()


def _client() -> Any:
    """This event loop's own client."""
    import httpx

    loop = id(asyncio.get_running_loop())
    if loop not in _clients:
        unlimited = httpx.Limits(max_connections=None)
        _clients[loop] = httpx.AsyncClient(limits=unlimited, timeout=httpx.Timeout(None))
    return _clients[loop]
