"""What a session holds is told by its last record alone; its state lasts as long as it does."""

from types import SimpleNamespace

import pytest

from miles_periodic.compat.bindings.session_turn import (
    begin_turn,
    current_turn,
    ends_the_run,
    prefix_of,
    refusal,
)
from miles_periodic.hooks import PeriodicError
from miles_periodic.hooks.values import SessionPrefix


def record(start, payload):
    meta_info = {} if payload is None else {"routed_experts": payload}
    request = {"routed_experts_start_len": start} if start else {}
    response = {"choices": [{"meta_info": meta_info}]}
    return SimpleNamespace(request=request, response=response)


def test_a_session_without_a_turn_holds_nothing():
    assert prefix_of([], None) == SessionPrefix()


def test_a_turn_with_routes_holds_a_row_for_each_token_but_the_last():
    assert prefix_of([1, 2, 3, 4], record(2, "AAAA")) == SessionPrefix([1, 2, 3, 4], 3)


def test_a_turn_whose_payload_is_empty_brought_all_that_it_was_asked_for():
    assert prefix_of([1, 2, 3], record(2, "")).num_rows == 2


def test_a_turn_without_routes_holds_the_rows_before_it():
    assert prefix_of([1, 2, 3, 4], record(2, None)).num_rows == 2
    assert prefix_of([1, 2, 3, 4], record(0, None)).num_rows == 0


def test_all_turns_of_a_session_share_its_state():
    one, other = SimpleNamespace(), SimpleNamespace()
    first = begin_turn("arguments", one)
    assert current_turn() is first
    assert begin_turn("arguments", one).rollout is first.rollout
    assert begin_turn("arguments", other).rollout is not first.rollout


def test_a_run_that_replays_no_routes_needs_no_experts(monkeypatch):
    seen = []

    def answers(hook, **parts):
        seen.append(parts["shape"])
        yield "a", "too old"

    monkeypatch.setattr("miles_periodic.compat.bindings.session_turn.each_answer", answers)
    turn = begin_turn(SimpleNamespace(), SimpleNamespace())
    turn.request = {"input_ids": [1]}
    assert refusal(turn, {"meta_info": {}}, 1) == "a: too old"
    assert seen == [None]


def test_an_error_of_a_feature_ends_the_run_and_is_not_swallowed(monkeypatch):
    told = []
    teller = SimpleNamespace(report_failure=lambda name, reason: told.append((name, reason)))
    monkeypatch.setattr("miles_periodic.compat.bindings.session_turn.member", lambda: teller)
    with pytest.raises(PeriodicError), ends_the_run("session/answer"):
        raise PeriodicError("Routes are refused.")
    assert told == [("session/answer", "Routes are refused.")]
