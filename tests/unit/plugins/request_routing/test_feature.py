"""The hooks together: a rollout sticks, a group shares its prompt, and what is known is bounded."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.hooks import (
    Feature,
    PeriodicError,
    RolloutState,
    RoutedAnswer,
    RoutedRequest,
    ServerState,
    hookimpl,
)
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.request_routing import feature as module
from miles_periodic.plugins.request_routing.feature import RequestRouting
from miles_periodic.plugins.request_routing.settings import RequestRoutingSettings

URLS = ["http://a", "http://b", "http://c"]
numbers = itertools.count()


class Fleet:
    """Servers that cache every prompt, behind our hooks."""

    def __init__(self, **settings):
        self.feature = RequestRouting(RequestRoutingSettings(block_tokens=4, **settings))
        self.hook = build_manager([self.feature]).hook
        self.urls = list(URLS)
        self.load = dict.fromkeys(URLS, 0)

    def route(self, tokens, key=None, salt=""):
        request = RoutedRequest(next(numbers), "/generate", tokens, salt)
        asked = {"request": request, "rollout_key": key}
        held = self.hook.expected_prefix_tokens(**asked, urls=self.urls)
        states = [ServerState(u, load=self.load[u], prefix_tokens=held[u]) for u in self.urls]
        url = self.hook.server_for_request(**asked, servers=states)
        self.hook.request_routed(**asked, url=url)
        return url, request

    def answer(self, url, request, key=None, status=200, cached=None, completion=3):
        counts = (len(request.tokens), cached, completion)
        self.hook.request_answered(
            request=request, rollout_key=key, answer=RoutedAnswer(url, status, *counts)
        )

    def turn(self, tokens, key=None, salt="", **answer):
        url, request = self.route(tokens, key, salt)
        self.answer(url, request, key, **answer)
        return url


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=2, max_size=5),
    st.text(max_size=4),
)
def test_every_turn_of_a_keyed_rollout_goes_where_the_turn_before_went(turns, key):
    fleet, tokens, seen = Fleet(), [], set()
    for new in turns:
        tokens = tokens + new
        seen.add(fleet.turn(tokens, key))
    assert len(seen) == 1


@given(st.lists(st.integers(0, 9), min_size=4, max_size=40))
def test_equal_requests_stick_without_a_key(tokens):
    fleet = Fleet()
    assert len({fleet.turn(tokens) for _ in range(4)}) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_a_server_that_cannot_be_chosen_is_never_chosen_and_may_come_back(steps):
    fleet = Fleet()
    for key, is_up in steps:
        fleet.urls = URLS if is_up else URLS[1:]
        url, request = fleet.route([key] * 8, str(key))
        assert url in fleet.urls
        fleet.answer(url, request, str(key))


def test_a_text_prompt_sticks_by_its_key():
    fleet = Fleet()
    first = fleet.turn([], "rollout", completion=500)
    others = [url for url in URLS if url != first]
    fleet.load.update(dict.fromkeys(others, 0) | {first: 0})
    assert {fleet.turn([], "rollout") for _ in range(3)} == {first}


def test_new_rollouts_are_spread_by_their_open_requests():
    fleet, counts = Fleet(), dict.fromkeys(URLS, 0)
    for number in range(6):
        url, _ = fleet.route([number] * 8, f"rollout-{number}")
        fleet.load[url] += 1
        counts[url] += 1
    assert set(counts.values()) == {2}


def test_a_prompt_under_another_salt_is_expected_nowhere():
    fleet = Fleet()
    fleet.turn([1] * 8, salt="one")
    request = RoutedRequest(next(numbers), "/generate", [1] * 8, "two")
    held = fleet.hook.expected_prefix_tokens(request=request, rollout_key=None, urls=URLS)
    assert set(held.values()) == {0}


def test_a_flushed_cache_is_believed_and_the_rollouts_of_that_server_are_free_again():
    fleet = Fleet(load_weight=1.0)
    url = fleet.turn([1] * 8, "one", cached=0)
    fleet.load = {u: 0 if u == url else 1 for u in URLS}
    fleet.turn([2] * 8, "two", cached=0)
    fleet.load = dict.fromkeys(URLS, 0)
    fleet.turn([2] * 12, "two", cached=0)
    held = fleet.feature._of_last_turn(RoutedRequest(0, "/generate", [1] * 8), "one", {url: 0})
    assert held == {}


def test_after_a_failure_nothing_is_expected_of_that_server():
    fleet = Fleet()
    url, request = fleet.route([1] * 8, "one")
    fleet.answer(url, request, "one", status=None)
    held = fleet.hook.expected_prefix_tokens(
        request=RoutedRequest(next(numbers), "/generate", [1] * 8), rollout_key="one", urls=URLS
    )
    assert set(held.values()) == {0}


def test_requests_that_are_never_answered_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN_REQUESTS", 5)
    fleet = Fleet()
    for _ in range(9):
        fleet.route([1] * 8)
    assert len(fleet.feature._open) == 5


class Elsewhere(Feature):
    slug = "elsewhere"

    @hookimpl
    def server_for_request(self, request, rollout_key, servers):
        return servers[-1].url if rollout_key == "theirs" else None


def test_hook_server_for_request_is_replaced_by_another_package():
    hook = build_manager([RequestRouting(), Elsewhere()]).hook
    states = [ServerState("a", prefix_tokens=100), ServerState("b")]
    request = RoutedRequest(0, "/generate")
    answers = {
        key: hook.server_for_request(request=request, rollout_key=key, servers=states)
        for key in ("theirs", "ours")
    }
    assert answers == {"theirs": "b", "ours": "a"}


class ElsewhereToo(Elsewhere):
    slug = "elsewhere-too"


def test_two_packages_that_replace_the_choice_are_refused():
    with pytest.raises(PeriodicError, match="elsewhere and elsewhere-too both replace"):
        build_manager([RequestRouting(), Elsewhere(), ElsewhereToo()])


def test_hook_routing_key_and_hook_data_parallel_rank_answer_only_where_they_are_on():
    asked = {"rollout_id": "sample-3", "kind": "rollout", "client_key": None}
    rollout = RolloutState(rollout_id="sample-3")
    on = build_manager([RequestRouting()]).hook
    assert on.routing_key(**asked) == "miles-periodic:rollout=8:sample-3"
    assert on.data_parallel_rank(rollout=rollout, num_ranks=4) in range(4)
    settings = RequestRoutingSettings(sticky_keys=False, sticky_ranks=False)
    off = build_manager([RequestRouting(settings)]).hook
    assert off.routing_key(**asked) is None
    assert off.data_parallel_rank(rollout=rollout, num_ranks=4) is None


def test_without_scores_the_router_chooses():
    feature = RequestRouting(RequestRoutingSettings(score_servers=False))
    request = RoutedRequest(0, "/generate")
    assert feature.server_for_request(request, None, [ServerState("a"), ServerState("b")]) is None


def test_hook_complete_arguments_sets_a_policy_only_where_none_is_named():
    feature = RequestRouting(RequestRoutingSettings(router_policy="manual"))
    chosen = {"sglang_router_policy": None}
    assert feature.complete_arguments(chosen) == {"sglang_router_policy": "manual"}
    for name in ("sglang_router_policy", "router_prefill_policy", "router_decode_policy"):
        assert feature.complete_arguments({name: "round_robin"}) is None
    assert RequestRouting().complete_arguments(chosen) is None


def test_a_policy_for_the_python_router_is_refused():
    feature = RequestRouting(RequestRoutingSettings(router_policy="manual"))
    with pytest.raises(PeriodicError, match="Leave request-routing.router_policy empty"):
        feature.complete_arguments({"use_miles_router": True})
