"""A request for routes reaches both servers of a pair; every other request goes on as it is."""

import asyncio
from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings import rollout_pairs
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.hooks.values import RolloutState

ROUTER = "http://router:1/generate"
REQUEST = {"input_ids": [1, 2, 3], "return_routed_experts": True}


class Joins(Feature):
    slug = "joins"
    why = "Joins."
    exit = "Never."
    problem = None

    @hookimpl
    def routed_experts_of_pair(self, prefill, decode, request, request_id):
        if self.problem:
            raise PeriodicError(self.problem)
        routes = [half["meta_info"].get("routed_experts") for half in (prefill, decode)]
        return f"{request_id}: {routes}"


class Network:
    """A router with workers, and what was posted where."""

    def __init__(self, workers):
        self.workers, self.posted, self.failures = workers, [], 0
        self.lost_answers, self.joins, self.replaced = 0, [], None

    async def get(self, url):
        assert url == "http://router:1/workers"
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("no answer")
        if self.joins:
            self.workers = [*self.workers, self.joins.pop()]
        return SimpleNamespace(
            status_code=200,
            json=lambda: {"workers": self.workers},
            raise_for_status=lambda: None,
        )

    async def post(self, url, json):
        self.posted.append((url, json))
        half = {"meta_info": {"routed_experts": "p"}}
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: half)

    async def miles_post(self, url, payload, max_retries=60, action="post", headers=None):
        self.posted.append((url, payload))
        if self.failures:
            self.failures -= 1
            self.workers = self.replaced or self.workers
            raise OSError("broke off")
        return {"meta_info": {"routed_experts": "d", "id": "r-1"}}


def worker(role, number):
    return {"url": f"http://{role}-{number}:2", "worker_type": role, "bootstrap_port": 8998}


PAIRS = [worker("prefill", 0), worker("decode", 0), worker("decode", 1)]


@pytest.fixture
def feature():
    return Joins()


@pytest.fixture
def network(monkeypatch, feature):
    made = Network(PAIRS)
    made.monkeypatch = monkeypatch
    manager = build_manager([feature])
    monkeypatch.setattr(rollout_pairs, "manager", lambda: manager)
    monkeypatch.setattr(rollout_pairs, "_client", lambda: made)
    monkeypatch.setattr(rollout_pairs, "_RETRY_SECONDS", 0.0)
    rollout_pairs._servers.clear()
    return made


def send(network, *requests, url=ROUTER):
    """The answers of a rollout's requests, one after the other."""

    state = RolloutState()
    network.monkeypatch.setattr(rollout_pairs, "current_rollout", lambda: state)

    async def rollout():
        return [
            await rollout_pairs.send_to_both(network.miles_post, None, (url, r), {})
            for r in requests
        ]

    return asyncio.run(rollout())


def test_both_servers_of_a_pair_get_the_request_and_the_same_room(network):
    (answer,) = send(network, REQUEST)
    assert answer["meta_info"]["routed_experts"] == "r-1: ['p', 'd']"
    (to_prefill, first), (to_decode, second) = sorted(network.posted, reverse=True)
    assert to_prefill == "http://prefill-0:2/generate"
    assert to_decode.startswith("http://decode-")
    assert first == second and first["bootstrap_host"] == "prefill-0"
    assert first["bootstrap_port"] == 8998


def test_a_rollout_stays_with_its_decode_server(network):
    send(network, *[REQUEST] * 5)
    assert len({url for url, _ in network.posted if "decode" in url}) == 1


def test_rollouts_are_spread_over_the_decode_servers(network):
    for _ in range(4):
        rollout_pairs._servers.clear()
        send(network, REQUEST)
    assert len({url for url, _ in network.posted if "decode" in url}) == 2


@pytest.mark.parametrize(
    ("url", "request_"),
    [
        (ROUTER, {"input_ids": [1]}),
        (ROUTER, {**REQUEST, "bootstrap_room": 7}),
        (ROUTER, {"text": "a", "return_routed_experts": True}),
        ("http://router:1/model_info", REQUEST),
    ],
)
def test_every_other_request_goes_to_the_router(network, url, request_):
    send(network, request_, url=url)
    assert network.posted == [(url, request_)]


def test_a_router_without_prefill_workers_gets_the_request_itself(network):
    network.workers = [worker("regular", 0)]
    send(network, REQUEST)
    assert network.posted == [(ROUTER, REQUEST)]


def test_a_router_that_did_not_answer_is_asked_again(network):
    network.lost_answers = 1
    (answer,) = send(network, REQUEST)
    assert answer["meta_info"]["routed_experts"] == "r-1: ['p', 'd']"


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_a_pair_of_which_one_half_has_joined_is_waited_for(network, first):
    other = {"prefill": "decode", "decode": "prefill"}[first]
    network.workers, network.joins = [], [worker(other, 0), worker(first, 0)]
    (answer,) = send(network, REQUEST)
    assert answer["meta_info"]["routed_experts"] == "r-1: ['p', 'd']"


def test_a_server_that_took_another_ones_place_is_found(network):
    network.failures, network.replaced = 1, [worker("prefill", 0), worker("decode", 7)]
    send(network, REQUEST)
    assert network.posted[-1][0] == "http://decode-7:2/generate"


def test_an_attempt_that_failed_is_repeated_in_another_room(network):
    network.failures = 1
    send(network, REQUEST)
    rooms = {request["bootstrap_room"] for _, request in network.posted}
    assert len(network.posted) == 4 and len(rooms) == 2


def test_a_pair_that_keeps_failing_fails_the_request(network):
    network.failures = 99
    with pytest.raises(OSError, match="broke off"):
        send(network, REQUEST)


def test_a_missing_half_is_not_tried_again(network, feature):
    feature.problem = "A half is missing."
    with pytest.raises(PeriodicError, match="A half is missing"):
        send(network, REQUEST)
    assert len(network.posted) == 2
