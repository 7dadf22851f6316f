"""The feature alone: no upstream, no GPU, no server."""

import pytest
from acme_miles import RoomiestServer, RoomiestServerSettings

from miles_periodic.hooks import PeriodicError, RoutedRequest, ServerState
from miles_periodic.hooks.manager import build_manager

REQUEST = RoutedRequest(number=1, path="/generate")


def chosen(*kv_uses, **settings):
    """The number of the server that a manager's hook chooses, or None."""
    manager = build_manager([RoomiestServer(RoomiestServerSettings(**settings))])
    servers = [ServerState(f"http://server-{n}", kv_use=use) for n, use in enumerate(kv_uses)]
    url = manager.hook.server_for_request(request=REQUEST, rollout_key=None, servers=servers)
    return None if url is None else int(url.rpartition("-")[2])


def test_the_server_with_the_most_room_is_chosen():
    assert chosen(0.5, 0.2, 0.7) == 1


def test_where_all_are_full_the_router_chooses():
    assert chosen(0.6, 0.7, max_kv_use=0.5) is None


def test_a_run_with_another_router_is_told_what_to_change():
    with pytest.raises(PeriodicError, match="--use-miles-router"):
        RoomiestServer().complete_arguments({"use_miles_router": False})
