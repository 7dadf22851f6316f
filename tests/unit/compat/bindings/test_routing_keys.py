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
    fields = ("text", "data_parallel_rank", "disagg_prefill_dp_rank", "routed_dp_rank")
    monkeypatch.setattr(routing_keys, "declared_fields", lambda: fields)
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
    """The fields that a request gets besides its own; the same over both turns."""
    (_, one, _), (_, other, _) = rollout((URL, {}, None), (URL, {}, None), **arguments)
    assert one == other
    return one


def test_a_rollout_stays_on_one_rank():
    fields = ranks(sglang_dp_size=4, use_miles_router=True)
    assert list(fields) == ["routed_dp_rank"] and fields["routed_dp_rank"] in range(4)


def test_behind_the_rust_router_the_rank_goes_under_every_name_that_the_server_takes():
    fields = ranks(sglang_dp_size=4)
    assert set(fields) == set(routing_keys.RANK_FIELDS) and len(set(fields.values())) == 1


def test_under_prefill_servers_the_decode_server_is_told_the_rank_of_the_prefill():
    fields = ranks(sglang_dp_size=4, prefill_num_servers=1)
    assert fields[routing_keys.PREFILL_RANK] == fields["routed_dp_rank"]


def test_a_server_that_takes_no_rank_is_sent_none(monkeypatch):
    monkeypatch.setattr(routing_keys, "declared_fields", lambda: ("text",))
    assert ranks(sglang_dp_size=4, prefill_num_servers=1) == {}


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


def test_the_fields_are_those_of_the_installed_server(tmp_path, monkeypatch):
    monkeypatch.undo()
    source = tmp_path / "sglang/srt/managers/io_struct.py"
    source.parent.mkdir(parents=True)
    source.write_text("class GenerateReqInput:\n    text: str\n    routed_dp_rank: int = None\n")
    monkeypatch.setattr(Tree, "installed", lambda upstream: Tree.at(upstream, tmp_path))
    routing_keys.declared_fields.cache_clear()
    assert routing_keys.declared_fields() == ("text", "routed_dp_rank")
    routing_keys.declared_fields.cache_clear()


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
