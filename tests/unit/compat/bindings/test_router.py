"""The router's adapters around a router: who is asked, who is told, and what stays the router's."""

import asyncio
import json
from types import SimpleNamespace

import httpx
import pytest

from miles_periodic.compat.bindings import router as module
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager

A, B = "http://a", "http://b"
BODY = json.dumps({"input_ids": [1, 2, 3]}).encode()
ANSWER = {"response_body": b'{"meta_info": {"cached_tokens": 2}}', "status_code": 200}


class Fixed(Feature):
    """Answers with `url` and keeps what it was told."""

    slug = "fixed"

    def __init__(self, url):
        super().__init__()
        self.url, self.told, self.seen = url, [], []

    @hookimpl
    def expected_prefix_tokens(self, request, rollout_key, urls):
        return {A: 40}

    @hookimpl
    def server_for_request(self, request, rollout_key, servers):
        self.seen.append((rollout_key, [(s.url, s.load, s.prefix_tokens) for s in servers]))
        return self.url

    @hookimpl
    def request_routed(self, request, rollout_key, url):
        self.told.append(("routed", url))

    @hookimpl
    def request_answered(self, request, rollout_key, answer):
        self.told.append(("answered", answer.url, answer.status, answer.cached_tokens))


class Router:
    """A router as Miles has it: `do_proxy` asks `_use_url`, and counts open requests."""

    def __init__(self, *urls):
        self.worker_request_counts = dict.fromkeys(urls, 0)
        self.dead_workers = set()
        self.fails = None

    def _use_url(self):
        url = min(self.worker_request_counts, key=self.worker_request_counts.get)
        self.worker_request_counts[url] += 1
        return url

    async def do_proxy(self, request, path, body=None, headers=None):
        url = module.choose(self._use_url, self, (), {})
        try:
            if self.fails is not None:
                raise self.fails
            self.sent = (url, body if body is not None else await request.body(), headers)
            return ANSWER
        finally:
            self.worker_request_counts[url] -= 1


@pytest.fixture
def ask(monkeypatch):
    """`ask(feature, router, …)` sends one request through the adapters; notices are kept."""
    said = []
    monkeypatch.setattr(module, "member", lambda: SimpleNamespace(notice=said.append))
    monkeypatch.setattr(module.ServerWatch, "keep_reading", lambda self: None)

    def send(feature, router, path="generate", key=None, headers=None):
        monkeypatch.setattr(module, "manager", lambda: build_manager([feature]))

        async def body():
            return BODY

        sent = {"x-smg-routing-key": key} if key else {}
        request = SimpleNamespace(method="POST", headers=sent, body=body)
        named = {} if headers is None else {"headers": headers}
        return asyncio.run(module.observe(router.do_proxy, router, (request, path), named))

    send.said = said
    return send


def test_hook_server_for_request_chooses_and_hook_expected_prefix_tokens_is_what_it_sees(ask):
    feature, router = Fixed(B), Router(A, B)
    assert ask(feature, router, key="k") is ANSWER
    assert feature.seen == [("k", [(A, 0, 40), (B, 0, 0)])]
    assert router.sent == (B, BODY, None)
    assert router.worker_request_counts == {A: 0, B: 0}


def test_hook_request_routed_and_hook_request_answered_are_told_in_turn(ask):
    feature = Fixed(B)
    ask(feature, Router(A, B))
    assert feature.told == [("routed", B), ("answered", B, 200, 2)]


def test_a_key_that_the_caller_gives_counts_not_that_of_the_connection(ask):
    feature = Fixed(B)
    ask(feature, Router(A, B), key="outer", headers={"X-SMG-Routing-Key": "inner"})
    assert feature.seen[0][0] == "inner"


def test_without_an_answer_the_router_chooses_and_the_features_are_told(ask):
    feature = Fixed(None)
    ask(feature, Router(A, B))
    assert feature.told[0] == ("routed", A)


def test_one_server_leaves_nothing_to_choose_and_that_is_said_once(ask):
    feature, router = Fixed(B), Router(A)
    ask(feature, router)
    ask(feature, router)
    assert (feature.seen, feature.told, ask.said) == ([], [], [module.ONE_SERVER])
    assert router.sent[0] == A


def test_a_request_that_does_not_generate_is_the_routers(ask):
    feature = Fixed(B)
    ask(feature, Router(A, B), path="flush_cache")
    assert (feature.seen, feature.told) == ([], [])


def test_a_server_that_is_gone_is_told_and_left_out_even_where_one_is_left(ask):
    feature, router = Fixed(A), Router(A, B)
    router.fails = httpx.ConnectError("refused")
    with pytest.raises(httpx.ConnectError):
        ask(feature, router)
    assert feature.told[-1] == ("answered", A, None, None)
    router.fails = None
    ask(feature, router)
    assert router.sent[0] == B
    assert router.worker_request_counts == {A: 0, B: 0}


def test_a_request_that_ends_in_another_way_is_closed_and_blames_no_server(ask):
    feature, router = Fixed(A), Router(A, B)
    router.fails = RuntimeError("the client left")
    with pytest.raises(RuntimeError):
        ask(feature, router)
    assert feature.told[-1] == ("answered", A, module.CLIENT_LEFT, None)
    assert len(module.watch_of(router).choices()) == 2


def test_a_url_that_cannot_be_chosen_is_refused(ask):
    with pytest.raises(PeriodicError, match="Repair the feature that implements server_for"):
        ask(Fixed("http://elsewhere"), Router(A, B))
