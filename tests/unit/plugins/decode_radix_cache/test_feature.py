"""Who gets the cache, what is refused beside it, and what a running server must show."""

import pytest

from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import Refusal, ServerGroup
from miles_periodic.plugins.decode_radix_cache.conflicts import ALWAYS_REFUSED, FLAG
from miles_periodic.plugins.decode_radix_cache.feature import DecodeRadixCache
from miles_periodic.plugins.decode_radix_cache.settings import DecodeRadixCacheSettings


@pytest.fixture
def feature():
    return DecodeRadixCache()


def decode(refusals=(), **arguments):
    return ServerGroup("decode", arguments, lambda argument: refusals)


def test_decode_servers_get_the_cache(feature):
    assert feature.server_arguments(servers=decode()) == {FLAG: True}


@pytest.mark.parametrize("role", ["prefill", "regular"])
def test_servers_of_other_roles_are_left_alone(feature, role):
    servers = ServerGroup(role, {"disaggregation_transfer_backend": "fake"})
    assert feature.server_arguments(servers=servers) is None
    assert feature.check_running_server(servers=servers, report={}, generate=None) is None


@pytest.mark.parametrize("refusal", ALWAYS_REFUSED, ids=lambda refusal: refusal.argument)
def test_what_no_tree_can_have_beside_it_is_refused_by_name(feature, refusal):
    with pytest.raises(PeriodicError, match=f"--sglang-{refusal.argument.replace('_', '-')}"):
        feature.server_arguments(servers=decode(**{refusal.argument: refusal.refused[0]}))


def test_a_value_that_the_tree_does_not_take_is_refused_with_those_that_it_takes(feature):
    nixl_only = Refusal("disaggregation_transfer_backend", allowed=("nixl",), where="x.py:7")
    with pytest.raises(PeriodicError, match=r"x\.py:7") as raised:
        feature.server_arguments(
            servers=decode([nixl_only], disaggregation_transfer_backend="mooncake")
        )
    assert raised.value.parts["expected"] == "one of nixl"


def test_speculative_decoding_is_refused_where_the_tree_allows_none(feature):
    none = Refusal("speculative_algorithm", allowed=(None,))
    with pytest.raises(PeriodicError, match="speculative_algorithm='EAGLE'"):
        feature.server_arguments(servers=decode([none], speculative_algorithm="EAGLE"))
    assert feature.server_arguments(servers=decode([none], speculative_algorithm=None))


def test_a_second_name_of_an_algorithm_is_taken_where_the_first_is(feature):
    some = Refusal("speculative_algorithm", allowed=(None, "EAGLE"))
    assert feature.server_arguments(servers=decode([some], speculative_algorithm="NEXTN"))


REPORT = {FLAG: True, "disable_radix_cache": False, "page_size": 1}


class Pair:
    """A decode server that reuses `reused` tokens of the second turn."""

    def __init__(self, reused):
        self.reused, self.requests = reused, []

    def generate(self, request):
        self.requests.append(request)
        num_new = request["sampling_params"]["max_new_tokens"]
        cached = 0 if len(self.requests) == 1 else self.reused(request["input_ids"])
        return {"output_ids": [7] * num_new, "meta_info": {"cached_tokens": cached}}


def check(pair, report=REPORT, **settings):
    feature = DecodeRadixCache(DecodeRadixCacheSettings(**settings))
    feature.check_running_server(servers=decode(), report=report, generate=pair.generate)


def test_a_server_that_reuses_what_it_generated_passes():
    pair = Pair(lambda tokens: len(tokens) - 3)
    check(pair)
    assert len({request["extra_key"] for request in pair.requests}) == 1


def test_a_server_that_reuses_what_prefill_holds_only_is_found():
    with pytest.raises(PeriodicError, match="without its radix cache"):
        check(Pair(lambda tokens: 64))


def test_more_cached_tokens_than_the_prompt_has_are_found():
    with pytest.raises(PeriodicError, match="at most"):
        check(Pair(lambda tokens: 2 * len(tokens)))


def test_the_proof_speaks_in_whole_pages():
    pair = Pair(lambda tokens: 192)
    check(pair, {**REPORT, "page_size": 96})
    first, second = pair.requests
    assert len(first["input_ids"]) == 96
    assert len(second["input_ids"]) > 192


@pytest.mark.parametrize(
    "report", [{}, {**REPORT, FLAG: False}, {**REPORT, "disable_radix_cache": True}]
)
def test_a_server_that_says_that_its_cache_is_off_is_found(report):
    with pytest.raises(PeriodicError, match="/server_info"):
        check(Pair(lambda tokens: len(tokens) - 3), report)


def test_the_proof_can_be_left_out():
    pair = Pair(lambda tokens: 0)
    check(pair, prove_reuse=False)
    assert pair.requests == []
