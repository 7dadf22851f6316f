"""Routing keys and data-parallel ranks on requests that Miles sends without."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.rollout_scope import current_arguments, current_rollout
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RolloutState

HEADER = "X-SMG-Routing-Key"

_REQUEST = "sglang.srt.managers.io_struct:GenerateReqInput"
#: The field of a request that chooses a rank, by its names in releases, newest first.
RANK_FIELDS = ("routed_dp_rank", "data_parallel_rank")
_PREFILL_RANK = "disagg_prefill_dp_rank"


def for_rollout(wrapped, instance, args, kwargs):
    """Symptom: turns of a rollout are spread over servers and ranks, each without its prefix.

    Trigger: a `/generate` request of a rollout leaves without a key: under PD policies, and on
    every path that does not look at the policy. Takes down: nothing. Safe because a key or rank
    that Miles set stays, the request is copied, and a router without such a policy ignores the
    header. Upstream: radixark/miles `policy_uses_routing_key` looks at one policy only.
    """
    return _post(wrapped, args, kwargs)


async def _post(post: Callable[..., Awaitable[Any]], args, kwargs):
    call = inspect.signature(post).bind(*args, **kwargs)
    url, request = call.arguments["url"], call.arguments.get("payload")
    rollout = current_rollout()
    is_generate = urlsplit(url).path.rstrip("/").endswith("/generate")
    if rollout is not None and is_generate and isinstance(request, Mapping):
        headers = dict(call.arguments.get("headers") or {})
        key = None if key_in(headers) else _key(rollout.rollout_id, "rollout")
        call.arguments["headers"] = (headers if key is None else {**headers, HEADER: key}) or None
        call.arguments["payload"] = {**_rank_fields(rollout, current_arguments()), **request}
    return await post(*call.args, **call.kwargs)


def for_session(wrapped, instance, args, kwargs):
    """Symptom: the turns of a chat session carry no key, or the one that its client chose.

    Trigger: Miles's session server hands a request of a session on to the router. Takes down:
    nothing. Safe because only the header of that name is set, from the session's id in the
    request's own path, and a client's key stays a part of it. Upstream: radixark/miles main sends
    the session's id.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    request, headers = call.arguments["request"], call.arguments.get("headers")
    session = request.path_params.get("session_id")
    if session is not None:
        sent = dict(request.headers) if headers is None else dict(headers)
        key = _key(session, "session", key_in(sent))
        if key is not None:
            others = {k: v for k, v in sent.items() if k.lower() != HEADER.lower()}
            call.arguments["headers"] = {**others, HEADER: key}
    return wrapped(*call.args, **call.kwargs)


def key_in(headers: Mapping[str, str]) -> str | None:
    """The routing key that some headers carry, whatever their case."""
    return next((value for name, value in headers.items() if name.lower() == HEADER.lower()), None)


def _key(identity: str, kind: str, client_key: str | None = None) -> str | None:
    return manager().hook.routing_key(rollout_id=identity, kind=kind, client_key=client_key)


def _rank_fields(rollout: RolloutState, arguments: Mapping[str, Any]) -> dict[str, int]:
    """The fields that put a rollout on one rank of whichever server it goes to."""
    num_ranks = arguments.get("sglang_dp_size") or 1
    field = rank_field() if num_ranks > 1 and not _ranks_are_chosen(arguments) else None
    if field is None:
        return {}
    rank = manager().hook.data_parallel_rank(rollout=rollout, num_ranks=num_ranks)
    if rank is None:
        return {}
    if not 0 <= rank < num_ranks:
        raise PeriodicError(
            "A feature chose a data-parallel rank that no server has.",
            target="data_parallel_rank",
            expected=f"0 to {num_ranks - 1}",
            found=repr(rank),
            remedy="Repair the feature that implements data_parallel_rank.",
        )
    if arguments.get("prefill_num_servers"):
        return {field: rank, _PREFILL_RANK: rank}
    return {field: rank}


def _ranks_are_chosen(arguments: Mapping[str, Any]) -> bool:
    """Whether a router knows the ranks, or server groups may differ in how many they have."""
    return bool(arguments.get("router_dp_aware") or arguments.get("sglang_config"))


@lru_cache(maxsize=1)
def rank_field() -> str | None:
    """The field by which the installed server takes a rank, or None."""
    tree = Tree.installed("sglang")
    found = tree.find(_REQUEST) if tree else None
    if found is None:
        return None
    fields = [ast.unparse(part.target) for part in found[1].body if isinstance(part, ast.AnnAssign)]
    return next((name for name in RANK_FIELDS if name in fields), None)
