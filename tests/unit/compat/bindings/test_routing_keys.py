"""Keys and ranks on requests: added where there is none, never in the place of Miles's own."""

import asyncio
from argparse import Namespace
from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings import rollout_scope, routing_keys
from miles_periodic.compat.bindings.rollout_scope import current_rollout
from miles_periodic.compat.tree import Tree
from miles_periodic.hooks import Feature, PeriodicError, hookimpl
from miles_periodic.hooks.manager import build_manager
from miles_periodic.plugins.request_routing.feature import RequestRouting

HEADER = routing_keys.HEADER
URL = "http://router/generate"


class WrongRank(Feature):
    slug = "wrong-rank"

    @hookimpl
    def data_parallel_rank(self, rollout, num_ranks):
        return num_ranks


@pytest.fixture(autouse=True)
def features(monkeypatch):
    def turn_on(*given):
        manager = build_manager(given)
        monkeypatch.setattr(routing_keys, "manager", lambda: manager)

    turn_on(RequestRouting())
    monkeypatch.setattr(routing_keys, "rank_field", lambda: "routed_dp_rank")
    return turn_on


def rollout(*requests, index=7, evaluation=False, **arguments):
    """Send requests within one rollout of Miles; what each left as, url, payload and headers."""
    sent = []

    async def post(url, payload, max_retries=60, action="post", headers=None):
        sent.append((url, payload, headers))
        return {}

    async def generate_and_rm(args, sample, sampling_params, evaluation=False):
        for url, payload, headers in requests:
            await routing_keys.for_rollout(post, None, (url, payload), {"headers": headers})

    given = (Namespace(**arguments), SimpleNamespace(index=index), {}, evaluation)
    asyncio.run(rollout_scope.enter(generate_and_rm, None, given, {}))
    return sent


def keys(sent):
    return [(headers or {}).get(HEADER) for _, _, headers in sent]


def test_all_turns_of_a_rollout_carry_one_key_and_another_rollout_another():
    one = keys(rollout((URL, {}, None), (URL, {}, {"X-Other": "1"})))
    assert one == ["miles-periodic:rollout=8:sample-7"] * 2
    assert keys(rollout((URL, {}, None), index=8)) != one[:1]


def test_a_rollout_that_is_resumed_keeps_its_key_and_an_evaluation_never_has_it():
    first = keys(rollout((URL, {}, None)))
    assert keys(rollout((URL, {}, None))) == first
    assert keys(rollout((URL, {}, None), evaluation=True)) != first


def test_samples_without_a_number_are_told_apart():
    assert keys(rollout((URL, {}, None), index=None)) != keys(rollout((URL, {}, None), index=None))


def test_a_key_that_miles_sent_stays_whatever_its_case():
    headers = {"x-smg-routing-key": "its own"}
    assert rollout((URL, {"a": 1}, headers)) == [(URL, {"a": 1}, headers)]


def test_requests_elsewhere_and_outside_of_a_rollout_pass_untouched():
    other = ("http://router/abort_request", {"rid": "1"}, None)
    assert rollout(other) == [other]
    sent = []

    async def post(url, payload, headers=None):
        sent.append((url, payload, headers))

    asyncio.run(routing_keys.for_rollout(post, None, (URL, {}), {}))
    assert sent == [(URL, {}, None)] and current_rollout() is None


def ranks(**arguments):
    (_, payload, _), *_ = sent = rollout((URL, {"text": "a"}, None), (URL, {}, None), **arguments)
    assert len({request.get("routed_dp_rank") for _, request, _ in sent}) == 1
    return {name: value for name, value in payload.items() if name != "text"}


def test_a_rollout_stays_on_one_rank():
    assert ranks(sglang_dp_size=4)["routed_dp_rank"] in range(4)


def test_under_prefill_servers_the_decode_server_is_told_the_rank_of_the_prefill():
    fields = ranks(sglang_dp_size=4, prefill_num_servers=1)
    assert fields["disagg_prefill_dp_rank"] == fields["routed_dp_rank"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sglang_dp_size": 1},
        {"sglang_dp_size": 4, "router_dp_aware": True},
        {"sglang_dp_size": 4, "sglang_config": "groups.yaml"},
    ],
)
def test_no_rank_is_sent_where_there_is_one_or_another_chooses_it(arguments):
    assert ranks(**arguments) == {}


def test_a_rank_that_miles_sends_stays():
    ((_, payload, _),) = rollout((URL, {"routed_dp_rank": 3}, None), sglang_dp_size=2)
    assert payload["routed_dp_rank"] == 3


def test_a_rank_that_no_server_has_is_refused(features):
    features(WrongRank())
    with pytest.raises(PeriodicError, match="expected: 0 to 3"):
        rollout((URL, {}, None), sglang_dp_size=4)


@pytest.mark.parametrize("name", routing_keys.RANK_FIELDS)
def test_the_rank_is_sent_under_the_name_that_the_installed_server_has(name, tmp_path, monkeypatch):
    monkeypatch.undo()
    source = tmp_path / "sglang/srt/managers/io_struct.py"
    source.parent.mkdir(parents=True)
    source.write_text(f"class GenerateReqInput:\n    text: str\n    {name}: int\n")
    monkeypatch.setattr(Tree, "installed", lambda upstream: Tree.at(upstream, tmp_path))
    routing_keys.rank_field.cache_clear()
    assert routing_keys.rank_field() == name
    routing_keys.rank_field.cache_clear()


def chat(session, headers, named=None):
    """What a session's request leaves with."""
    request = SimpleNamespace(
        path_params={} if session is None else {"session_id": session}, headers=headers
    )

    def do_proxy(request, path, body=None, headers=None):
        return headers

    given = {} if named is None else {"headers": named}
    return routing_keys.for_session(do_proxy, None, (request, "v1/chat/completions"), given)


def test_a_session_carries_its_own_key():
    headers = chat("abc", {"accept": "json"})
    assert headers == {"accept": "json", HEADER: "miles-periodic:session=3:abc"}


def test_the_same_key_of_two_clients_is_two_keys():
    sent = {"x-smg-routing-key": "mine"}
    one, other = chat("abc", sent), chat("abd", sent)
    assert one[HEADER] == "miles-periodic:session=3:abc;client=mine" != other[HEADER]
    assert set(one) == {HEADER}


def test_what_is_no_sessions_request_passes_untouched():
    assert chat(None, {"a": "b"}) is None
    assert chat(None, {"a": "b"}, {"c": "d"}) == {"c": "d"}
