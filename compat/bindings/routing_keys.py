"""Routing keys and data-parallel ranks on requests that Miles sends without."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from miles_periodic.compat.bindings.features import manager
from miles_periodic.compat.bindings.generate_post import Post, is_generate
from miles_periodic.compat.bindings.rollout_scope import current_arguments, current_rollout
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks.errors import PeriodicError
from miles_periodic.hooks.values import RolloutState

HEADER = "X-SMG-Routing-Key"

_REQUEST = "sglang.srt.managers.io_struct:GenerateReqInput"
#: The field of a request that chooses a rank, under its names in releases, newest first.
RANK_FIELDS = ("routed_dp_rank", "data_parallel_rank")
#: The rank of the prefill server, as the decode server is told it.
PREFILL_RANK = "disagg_prefill_dp_rank"


def for_rollout(wrapped, instance, args, kwargs):
    """Symptom: turns of a rollout are spread over servers and ranks, each without its prefix.

    Trigger: a `/generate` request of a rollout leaves without a key: under PD policies, and on
    every path that does not look at the policy. Takes down: nothing. Safe because a key or rank
    that Miles set stays, the request is copied, and a router without such a policy ignores the
    header. Upstream: radixark/miles `policy_uses_routing_key` looks at one policy only.
    """
    return _post(wrapped, args, kwargs)


async def _post(post: Post, args, kwargs):
    call = inspect.signature(post).bind(*args, **kwargs)
    url, request = call.arguments["url"], call.arguments.get("payload")
    rollout = current_rollout()
    if rollout is not None and is_generate(url, request):
        headers = dict(call.arguments.get("headers") or {})
        key = None if key_in(headers) else _key(rollout.rollout_id, "rollout")
        call.arguments["headers"] = (headers if key is None else {**headers, HEADER: key}) or None
        call.arguments["payload"] = {**_rank_fields(rollout, vars(current_arguments())), **request}
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
    """The fields that put a rollout on one rank of whichever server it goes to.

    Behind the Rust router under every name that the server takes: the router drops fields that it
    does not know, and of these names it knows the older one.
    """
    num_ranks = arguments.get("sglang_dp_size") or 1
    names = _names_of_the_rank() if num_ranks > 1 and not _ranks_are_chosen(arguments) else ()
    rank = (
        manager().hook.data_parallel_rank(rollout=rollout, num_ranks=num_ranks) if names else None
    )
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
    names = _names_of_the_rank()[: 1 if arguments.get("use_miles_router") else None]
    if arguments.get("prefill_num_servers"):
        names = (*names, *(name for name in declared_fields() if name == PREFILL_RANK))
    return dict.fromkeys(names, rank)


def _names_of_the_rank() -> tuple[str, ...]:
    return tuple(name for name in RANK_FIELDS if name in declared_fields())


def _ranks_are_chosen(arguments: Mapping[str, Any]) -> bool:
    """Whether a router knows the ranks, or server groups may differ in how many they have."""
    return bool(arguments.get("router_dp_aware") or arguments.get("sglang_config"))


@lru_cache(maxsize=1)
def declared_fields() -> tuple[str, ...]:
    """The fields of a `/generate` request that the installed server declares."""
    tree = Tree.installed("sglang")
    found = tree.find(_REQUEST) if tree else None
    if found is None:
        return ()
    declared = [part for part in found[1].body if isinstance(part, ast.AnnAssign)]
    return tuple(ast.unparse(part.target) for part in declared)
