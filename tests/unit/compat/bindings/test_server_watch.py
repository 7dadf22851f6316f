"""What servers report decides who can be chosen: dead and outdated ones not, late ones still."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.compat.bindings import server_watch
from miles_periodic.compat.bindings.server_watch import (
    READINGS_BEHIND,
    ServerWatch,
    load_in,
    urls_behind,
)

A, B = "http://a", "http://b"
LOADS = {
    "loads": [{"num_running_reqs": 2, "num_waiting_reqs": 3, "token_usage": 0.25}],
}


class Servers:
    """Two servers behind a client: `say[url]` is their load, or the error that a request meets."""

    def __init__(self, monkeypatch):
        self.router = SimpleNamespace(worker_request_counts={A: 1, B: 2}, dead_workers=set())
        self.said = []
        self.watch = ServerWatch(self.router, self.said.append)
        self.say = {A: LOADS, B: LOADS}
        self.versions = {A: "1", B: "1"}
        self.has_new_path = True
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        monkeypatch.setattr(httpx, "AsyncClient", lambda **options: client)
        monkeypatch.setattr(server_watch, "READ_INTERVAL_SECONDS", 0)

    def _answer(self, request):
        url = f"http://{request.url.host}"
        if isinstance(self.say[url], Exception):
            raise self.say[url]
        if request.url.path == "/model_info":
            return httpx.Response(200, json={"weight_version": self.versions[url]})
        if request.url.path == "/v1/loads" and not self.has_new_path:
            return httpx.Response(404, json={})
        return httpx.Response(200, json=self.say[url])

    def read(self, times=1):
        """Let the watch read so often, then look at who can be chosen."""

        async def some():
            client = httpx.AsyncClient()
            for _ in range(times):
                for url in self.router.worker_request_counts:
                    await self.watch._read(client, url)

        asyncio.run(some())
        return [server.url for server in self.watch.choices()]


@pytest.fixture
def servers(monkeypatch):
    return Servers(monkeypatch)


def test_servers_can_be_chosen_before_anything_was_read(servers):
    assert [(s.url, s.load) for s in servers.watch.choices()] == [(A, 1), (B, 2)]


def test_the_load_is_what_the_server_reports_and_what_the_router_counts(servers):
    servers.read()
    state = servers.watch.choices()[1]
    assert (state.queue_depth, state.running_requests, state.kv_use) == (3, 2, 0.25)
    assert (state.load, state.weight_version) == (2, "1")


def test_an_older_server_is_read_by_its_older_path(servers):
    servers.has_new_path = False
    servers.say = dict.fromkeys((A, B), [{"num_reqs": 5, "num_waiting_reqs": 3}])
    servers.read()
    state = servers.watch.choices()[0]
    assert (state.queue_depth, state.running_requests, state.kv_use) == (3, 2, 0.0)


def test_a_server_that_cannot_be_reached_is_left_out_until_it_answers(servers):
    servers.say[A] = httpx.ConnectError("refused")
    assert servers.read() == [B]
    servers.say[A] = LOADS
    assert servers.read() == [A, B]


def test_a_server_that_failed_a_request_is_left_out_at_once(servers):
    servers.watch.failed(B)
    assert [server.url for server in servers.watch.choices()] == [A]
    assert servers.read() == [A, B]


def test_a_server_that_answers_late_keeps_its_place_and_its_last_load(servers):
    servers.read()
    servers.say[A] = httpx.ReadTimeout("busy")
    assert servers.read() == [A, B]
    assert servers.watch.choices()[0].queue_depth == 3


@pytest.mark.parametrize("reported", [{}, {"loads": [{}]}, [], [3], {"loads": 7}, "x"])
def test_a_load_that_is_none_leaves_what_is_known(servers, reported):
    servers.read()
    servers.say[A] = reported
    assert servers.read(2) == [A, B]
    assert len(servers.said) == (reported != [])


def test_a_server_that_the_router_took_for_dead_stays_out(servers):
    servers.router.dead_workers.add(A)
    assert servers.read() == [B]


def test_a_recovered_engine_without_the_current_weights_gets_no_request(servers):
    servers.versions = {A: "7", B: "default"}
    assert servers.read() == [A]
    servers.versions[B] = "7"
    assert servers.read() == [A, B]


def test_an_update_under_way_moves_nobody_and_one_that_missed_a_server_leaves_it_out(servers):
    servers.versions = {A: "8", B: "7"}
    assert servers.read(READINGS_BEHIND - 1) == [A, B]
    assert servers.read() == [A]


def test_a_server_that_joins_is_read_before_it_can_be_chosen(servers):
    del servers.router.worker_request_counts[B]
    servers.read()
    servers.router.worker_request_counts[B] = 0
    assert [server.url for server in servers.watch.choices()] == [A]
    assert servers.read() == [A, B]


def test_where_no_server_is_left_the_router_chooses(servers):
    servers.say = dict.fromkeys((A, B), httpx.ConnectError("refused"))
    assert servers.read() == []


def test_servers_that_are_there_from_the_start_need_not_all_be_read_at_once(servers):
    servers.say[B] = httpx.ReadTimeout("busy")

    async def start():
        servers.watch.keep_reading()
        servers.watch._reader.cancel()

    asyncio.run(start())
    assert servers.read() == [A, B]


def test_reading_starts_once_and_goes_on(servers):
    async def start():
        servers.watch.keep_reading()
        reader = servers.watch._reader
        servers.watch.keep_reading()
        while servers.watch.choices()[0].queue_depth != 3:
            await asyncio.sleep(0)
        assert servers.watch._reader is reader and not reader.done()
        reader.cancel()

    asyncio.run(start())


VERSIONS = st.dictionaries(
    st.text(max_size=3), st.none() | st.sampled_from(["default", "1", "2", "10", "²"])
)


@given(VERSIONS)
def test_never_are_all_behind_and_who_reports_no_version_is_not(versions):
    behind = urls_behind(versions)
    assert behind < set(versions) or not versions
    assert all(versions[url] is not None for url in behind)


def test_ten_is_newer_than_nine():
    assert urls_behind({A: "10", B: "9"}) == {B}


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "num_running_reqs": st.integers(-3, 9),
                "num_waiting_reqs": st.integers(-3, 9),
                "token_usage": st.floats(-1, 2) | st.none(),
            }
        )
    )
)
def test_a_load_is_never_negative_and_no_cache_more_than_full(ranks):
    load = load_in({"loads": ranks})
    assert load["queue_depth"] >= 0 and load["running_requests"] >= 0
    assert 0 <= load["kv_use"] <= 1
