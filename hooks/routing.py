"""Hook specs that decide which server, and which rank of it, answers a rollout's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from miles_periodic.hooks.feature import hookspec
from miles_periodic.hooks.values import RolloutState, RoutedAnswer, RoutedRequest, ServerState


@hookspec(firstresult=True)
def routing_key(rollout_id: str, kind: str, client_key: str | None) -> str | None:
    """The key under which every request of one rollout is routed alike.

    Called before a request leaves: in the rollout manager for `/generate`, in the session server
    for a chat. `rollout_id` is the trajectory's or the session's id, `kind` says which (`rollout`
    or `session`); `client_key` is the key that the client of a session sent itself, or None. A
    key that Miles sets is left alone, and this hook is not called. `None` sends none. First
    result wins; one that is not marked `trylast` replaces ours.
    """


@hookspec(firstresult=True)
def data_parallel_rank(rollout: RolloutState, num_ranks: int) -> int | None:
    """The data-parallel rank of a server on which a rollout's requests run.

    Called in the rollout manager before each `/generate` request of the trajectory whose state is
    `rollout`, where servers have `num_ranks` > 1 ranks and no router chooses among them. Returns
    0 to num_ranks - 1, the same over all turns, or `None` to leave it to the server. First result
    wins; one that is not marked `trylast` replaces ours.
    """


@hookspec(firstresult=True)
def expected_prefix_tokens(
    request: RoutedRequest, rollout_key: str | None, urls: Sequence[str]
) -> Mapping[str, int] | None:
    """How many of a request's first tokens each server is expected to hold in its KV cache.

    Called in the process of Miles's Python router once per request, before it is routed. `request`
    is that request, `rollout_key` its sticky key or None, `urls` the servers that can be chosen.
    Returns tokens per url, or `None` for 0 everywhere. First result wins; one that is not marked
    `trylast` replaces ours.
    """


@hookspec(firstresult=True)
def server_for_request(
    request: RoutedRequest, rollout_key: str | None, servers: Sequence[ServerState]
) -> str | None:
    """The url of the server that answers a request.

    Called in the process of Miles's Python router once per request where there are two servers or
    more, on its event loop: it must not wait for anything. `request` is that request,
    `rollout_key` its sticky key or None. `servers` are those that can be chosen, sorted by url:
    one that failed, or whose weights are behind, is not among them. Returns the url of one of
    them, or `None` to leave the choice to the router. First result wins; one that is not marked
    `trylast` replaces ours.
    """


@hookspec
def request_routed(request: RoutedRequest, rollout_key: str | None, url: str) -> None:
    """A request goes to a server, whoever chose it.

    Called in the process of Miles's Python router right after the choice. `request` is that
    request, `rollout_key` its sticky key or None, `url` the server. Composed; nothing is returned.
    """


@hookspec
def request_answered(request: RoutedRequest, rollout_key: str | None, answer: RoutedAnswer) -> None:
    """A routed request was answered, or failed.

    Called in the process of Miles's Python router, once for each `request_routed`. `request` is
    the request, `rollout_key` its sticky key or None, `answer` what its server made of it.
    Composed; nothing is returned.
    """
