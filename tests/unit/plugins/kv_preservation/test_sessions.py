"""Sessions under kv-preservation: keys that cannot collide, and versions that only grow."""

import pytest

from miles_periodic.hooks.values import RolloutState, RouteShape, SessionPrefix
from miles_periodic.plugins.kv_preservation.feature import KVPreservation, salt_of
from miles_periodic.plugins.kv_preservation.sessions import with_one_key
from miles_periodic.plugins.kv_preservation.settings import KVPreservationSettings

SHAPE = RouteShape(3, 2, 8)


@pytest.fixture
def feature():
    return KVPreservation(KVPreservationSettings())


def fields(feature, rollout, **request):
    return feature.session_request_fields(
        rollout=rollout, prefix=SessionPrefix(), tokens=[1], request=request
    )


def refusal(feature, rollout, version):
    return feature.session_response_refusal(
        rollout=rollout,
        request={},
        meta_info={"weight_version": version},
        num_tokens=2,
        shape=SHAPE,
    )


def test_hook_session_request_fields_salts_by_the_version_that_the_session_began_under(feature):
    assert fields(feature, RolloutState("3")) == {"extra_key": salt_of("3")}


def test_the_two_keys_of_a_client_become_one_that_names_where_they_meet(feature):
    pairs = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("b", "a"), ("a", None)]
    answers = [fields(feature, RolloutState("3"), cache_salt=s, extra_key=k) for s, k in pairs]
    assert len({answer["extra_key"] for answer in answers}) == len(pairs)
    assert all(answer.get("cache_salt") is None for answer in answers)


def test_a_request_without_a_cache_salt_keeps_its_key():
    assert with_one_key({"extra_key": "mine"}) == {"extra_key": "mine"}


def test_hook_session_response_refusal_names_a_server_that_was_not_updated(feature):
    rollout = RolloutState("3")
    fields(feature, rollout)
    assert refusal(feature, rollout, "3") is None
    assert "not updated yet" in refusal(feature, rollout, "default")
    assert refusal(feature, rollout, "4") is None


def test_a_session_that_begins_on_such_a_server_is_measured_by_what_others_saw(feature):
    first, late = RolloutState("3"), RolloutState("default")
    fields(feature, first)
    assert refusal(feature, first, "4") is None
    fields(feature, late)
    assert "not updated yet" in refusal(feature, late, "default")


def test_before_the_first_update_every_server_reports_a_name_and_is_right(feature):
    rollout = RolloutState("default")
    fields(feature, rollout)
    assert refusal(feature, rollout, "default") is None
