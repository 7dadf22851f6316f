"""Requests that reached a server they should not have, each named after the right behaviour."""

import asyncio
from types import SimpleNamespace

import httpx

from miles_periodic.compat.bindings.server_watch import READINGS_BEHIND, ServerWatch
from miles_periodic.plugins.request_routing.sticky import key_of

URLS = ("http://trained", "http://recovered")


def watched(*versions):
    """Who can be chosen after each reading, of two servers that report those weight versions."""
    router = SimpleNamespace(worker_request_counts=dict.fromkeys(URLS, 0), dead_workers=set())
    watch, chosen = ServerWatch(router, print), []

    async def read():
        for reported in versions:
            told = dict(zip(URLS, reported, strict=True))

            def answer(request, told=told):
                version = told[f"http://{request.url.host}"]
                return httpx.Response(200, json={"weight_version": version, "loads": []})

            async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
                for url in URLS:
                    await watch._read(client, url)
            chosen.append([server.url for server in watch.choices()])

    asyncio.run(read())
    return chosen


class TestWeightsOfARecoveredServer:
    """miles#1807: a recovered engine serves base weights, and its samples enter training."""

    def test_it_is_not_routed_to_before_it_has_the_current_weights(self):
        before, after = watched(("7", "default"), ("7", "7"))
        assert before == [URLS[0]]
        assert after == sorted(URLS)

    def test_one_that_missed_an_update_is_not_routed_to_either(self):
        assert watched(*[("7", "6")] * READINGS_BEHIND)[-1] == [URLS[0]]

    def test_an_update_that_reaches_one_server_after_the_other_keeps_both(self):
        assert watched(("7", "6"), ("7", "7"), ("8", "7")) == [sorted(URLS)] * 3

    def test_before_the_first_update_every_server_is_routed_to(self):
        assert watched(("default", "default")) == [sorted(URLS)]


class TestKeysThatClientsChoose:
    """sglang#24638: a key that a client chose was the one of somebody else."""

    def test_two_sessions_whose_clients_send_one_key_are_told_apart(self):
        assert key_of("session", "one", "key") != key_of("session", "other", "key")

    def test_no_client_can_write_the_key_of_another_session(self):
        victim = key_of("session", "victim", "key")
        assert key_of("session", "one", victim) != victim
        assert key_of("session", "victim;client=key") != victim
