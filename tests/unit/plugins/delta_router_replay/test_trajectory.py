"""What a rollout holds, in whatever order requests come and however history is rewritten."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.hooks.values import EarlierTurns, RouteAnswer, RouteShape
from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError
from miles_periodic.plugins.delta_router_replay.trajectory import MAX_BRANCHES, Trajectory

SHAPE = RouteShape(num_layers=2, top_k=2, num_experts=8)


def routes(tokens, version=0):
    """One row per token but the last, which depends on all tokens before it and on the weights."""
    sums = np.cumsum(np.asarray(list(tokens), np.int64) + version)[:-1, None]
    first = (sums + np.arange(2)) % 8
    return np.stack([first, (first + 1 + sums % 7) % 8], axis=-1).astype(np.int32)


def answer(tokens, start, num_rows=None, version=0, **parts):
    rows = routes([*tokens, 0], version)[start : len(tokens) - 1]
    if num_rows is not None:
        rows = routes([*tokens, 0, 0, 0], version)[start : start + num_rows]
    return RouteAnswer(base64.b64encode(rows.tobytes()).decode(), start, "r", **parts)


def turn(held, prompt, new, version=0):
    start = held.ask(prompt)
    tokens = [*prompt, *new]
    return tokens, start, held.answer(tokens, answer(tokens, start, version=version), SHAPE)


def test_rows_that_sampled_earlier_turns_stay_through_a_weight_update():
    held = Trajectory()
    tokens, _, before = turn(held, [1, 2, 3], [4, 5])
    before = before.copy()
    _, start, after = turn(held, tokens, [6], version=1)
    assert start == 4 and (after[:4] == before).all()


def test_a_start_of_one_is_never_asked_from():
    held = Trajectory()
    turn(held, [1], [2])
    assert held.ask([1, 2, 3]) == 0


def test_a_server_that_forwarded_the_last_token_may_send_its_row():
    held = Trajectory()
    held.ask([1, 2, 3])
    rows = held.answer([1, 2, 3, 4], answer([1, 2, 3, 4], 0, num_rows=4), SHAPE)
    assert len(rows) == 3 and held.ask([1, 2, 3, 4, 5]) == 4


@pytest.mark.parametrize("num_rows", [2, 5])
def test_another_number_of_rows_than_asked_for_is_refused(num_rows):
    held = Trajectory()
    held.ask([1, 2, 3])
    with pytest.raises(RouteRowsError, match=f"{num_rows} rows came where 3 were asked for"):
        held.answer([1, 2, 3, 4], answer([1, 2, 3, 4], 0, num_rows=num_rows), SHAPE)


def test_a_refused_response_leaves_what_was_held():
    held = Trajectory()
    tokens, *_ = turn(held, [1, 2, 3], [4, 5])
    held.ask([1, 2, 9, 9, 9])
    with pytest.raises(RouteRowsError):
        held.answer([1, 2, 9, 9, 9], RouteAnswer("AAAA", 2), SHAPE)
    assert held.ask(tokens) == 4


def test_routes_that_did_not_come_are_refused():
    held = Trajectory()
    held.ask([1, 2])
    with pytest.raises(RouteRowsError, match="0 rows came where 2"):
        held.answer([1, 2, 3], RouteAnswer(None), SHAPE)


def test_the_gap_of_an_aborted_turn_ends_what_can_be_used():
    held = Trajectory()
    tokens, *_ = turn(held, [1, 2, 3], [4, 5])
    start = held.ask(tokens)
    aborted = [*tokens, 6, 7, 1]
    rows = held.answer(aborted, answer(aborted, start, num_rows=1, is_aborted=True), SHAPE)
    assert len(rows) == 5
    assert held.ask([*aborted, 2]) == 5


def test_an_aborted_turn_without_routes_changes_nothing():
    held = Trajectory()
    tokens, *_ = turn(held, [1, 2, 3], [4, 5])
    held.ask(tokens)
    rows = held.answer([*tokens, 6], RouteAnswer(None, 4, is_aborted=True), SHAPE)
    assert len(rows) == 4 and held.ask(tokens) == 4


def test_zero_new_tokens_are_a_valid_turn():
    held = Trajectory()
    tokens, *_ = turn(held, [1, 2, 3], [4, 5])
    _, start, rows = turn(held, tokens, [])
    assert start == 4 and (rows == routes(tokens)).all()


def test_two_requests_at_once_do_not_disturb_each_other():
    held = Trajectory()
    tokens, *_ = turn(held, [1, 2, 3], [4, 5])
    left, right = [*tokens, 6], [1, 2, 7, 7]
    starts = held.ask(left), held.ask(right)
    left, right = [*left, 0], [*right, 0, 3]
    rows = held.answer(right, answer(right, starts[1]), SHAPE)
    assert (rows == routes(right)).all()
    rows = held.answer(left, answer(left, starts[0]), SHAPE)
    assert (rows == routes(left)).all()


def test_each_of_two_requests_for_one_prompt_keeps_the_rows_that_sampled_its_own_tokens():
    held = Trajectory()
    starts = held.ask([1, 2, 3]), held.ask([1, 2, 3])
    first, second = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]
    held.answer(first, answer(first, starts[0]), SHAPE)
    rows = held.answer(second, answer(second, starts[1], version=1), SHAPE)
    assert (rows[2:] == routes(second, 1)[2:]).all()


def test_a_prompt_that_is_sent_again_gets_the_row_that_samples_its_first_new_token():
    held = Trajectory()
    turn(held, [1, 2, 3, 4], [5, 6])
    tokens, start, rows = turn(held, [1, 2, 3, 4], [5, 7], version=1)
    assert start == 3
    assert (rows[:3] == routes(tokens)[:3]).all() and (rows[3:] == routes(tokens, 1)[3:]).all()


def test_the_rows_of_a_history_that_nothing_goes_on_from_are_let_go():
    held = Trajectory()
    turn(held, [1, 2, 3, 4], [5])
    turn(held, [1, 2, 6, 6], [5])
    assert held.ask([1, 2, 3, 4]) == 2


def test_requests_that_never_came_back_do_not_pile_up_histories():
    held = Trajectory()
    held.ask([1])
    for token in range(3 * MAX_BRANCHES):
        turn(held, [9, token % 8, token // 8, 5], [6])
    assert len(held._branches) == MAX_BRANCHES


def test_an_interrupted_rollout_goes_on_with_the_rows_that_sampled_its_tokens():
    held = Trajectory()
    before = routes([1, 2, 3, 4]).astype(np.uint8)
    held.resume(EarlierTurns([1, 2, 3, 4], before, SHAPE))
    _, start, rows = turn(held, [1, 2, 3, 4], [5, 6], version=1)
    assert start == 3 and (rows[:3] == before).all()


def test_routes_of_an_interrupted_rollout_that_are_none_are_refused():
    with pytest.raises(RouteRowsError, match="of an earlier turn"):
        routes = np.full((1, 2, 2), 9, np.int32)
        Trajectory().resume(EarlierTurns([1, 2], routes, SHAPE))


@given(st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 7), max_size=4)), max_size=8))
def test_whatever_history_is_kept_the_rows_are_those_of_the_tokens(turns):
    held, tokens = Trajectory(), [1, 2]
    for kept, added in turns:
        prompt = [*tokens[: max(kept, 2)], *added]
        tokens, start, rows = turn(held, prompt, [3, 5])
        assert start <= len(prompt) and (rows == routes(tokens)).all()
