"""Rows of a session: asked for from where they end, counted, and joined without overwriting."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.hooks.values import RouteShape, SessionPrefix, SessionTurn
from miles_periodic.plugins.delta_router_replay import RouteRowsError, wire
from miles_periodic.plugins.delta_router_replay.sessions import (
    check_count,
    joined,
    next_row,
)

SHAPE = RouteShape(num_layers=3, top_k=2, num_experts=8)


def rows_of(tokens, pass_number=0):
    """Rows that depend on all tokens up to theirs, and on which pass over them made them."""
    sums = (np.cumsum(np.asarray(tokens, np.int64)) + 3 * pass_number)[:, None]
    first = (sums + np.arange(3)) % 8
    return np.stack([first, (first + 1 + sums % 7) % 8], axis=-1).astype(np.int32)


def turn(tokens, start, pass_number=0, compact=False):
    rows = rows_of(tokens, pass_number)[start : len(tokens) - 1]
    content = wire.encode(rows, start, 8) if compact else rows
    return SessionTurn(tokens, start, base64.b64encode(content.tobytes()).decode(), "request-1")


def test_the_first_turn_asks_for_all_rows():
    assert next_row(SessionPrefix(), [1, 2, 3]) == 0


def test_a_turn_asks_from_the_first_row_that_is_not_held():
    assert next_row(SessionPrefix([1, 2, 3, 4], 3), [1, 2, 3, 4, 5]) == 3


def test_a_turn_that_rewrites_its_history_asks_from_where_it_parts():
    assert next_row(SessionPrefix([1, 2, 3, 4], 3), [1, 9, 3, 4, 5]) == 1


def test_a_prompt_that_is_shorter_than_what_is_held_asks_for_its_last_row_at_most():
    assert next_row(SessionPrefix([1, 2, 3, 4], 3), [1, 2]) == 2


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6))
def test_deltas_of_every_length_and_form_join_to_all_rows(lengths, compact):
    told, turns, start = [], [], 0
    for number, length in enumerate(lengths):
        told = [*told, *range(number, number + length + 1)]
        turns.append(turn(told, start, compact=compact[number]))
        start = len(told) - 1
    for part, answer in zip(turns, joined(turns, SHAPE), strict=True):
        assert answer.dtype == np.uint8
        assert answer.tolist() == rows_of(part.tokens)[:-1].tolist()


def test_a_full_answer_of_another_pass_overwrites_no_row():
    turns = [turn([1, 2, 3], 0), turn([1, 2, 3, 4, 5], 0, pass_number=1)]
    answer = joined(turns, SHAPE)[1]
    assert answer[:2].tolist() == rows_of([1, 2]).tolist()
    assert answer[2:].tolist() == rows_of([1, 2, 3, 4], 1)[2:].tolist()


def test_rows_of_a_history_that_was_rewritten_are_dropped():
    turns = [turn([1, 2, 3, 4], 0), turn([1, 2, 6, 7, 5], 2)]
    assert joined(turns, SHAPE)[1].tolist() == rows_of([1, 2, 6, 7]).tolist()


def test_from_a_turn_without_routes_on_nothing_is_answered():
    turns = [turn([1, 2], 0), SessionTurn([1, 2, 3], 1, None), turn([1, 2, 3, 4], 1)]
    first, *others = joined(turns, SHAPE)
    assert len(first) == 1
    assert others == [None, None]


def test_a_turn_with_rows_too_few_is_refused_by_request_and_rows():
    short = SessionTurn([1, 2, 3], 0, turn([1, 2], 0).payload, "request-9")
    with pytest.raises(RouteRowsError, match="request-9.*rows came where 2 were asked for"):
        joined([short], SHAPE)


def test_a_turn_that_leaves_a_gap_is_refused():
    with pytest.raises(RouteRowsError, match="gap"):
        joined([turn([1, 2, 3, 4], 2)], SHAPE)


def test_a_blob_that_begins_elsewhere_is_refused():
    payload = turn([1, 2, 3], 1, compact=True).payload
    turns = [turn([1, 2], 0), SessionTurn([1, 2, 3], 0, payload)]
    with pytest.raises(RouteRowsError, match="begins at row 1"):
        joined(turns, SHAPE)


def test_a_payload_is_not_text_or_bytes_of_routes():
    with pytest.raises(RouteRowsError, match="cannot be read"):
        joined([SessionTurn([1, 2], 0, "no base64!")], SHAPE)


@pytest.mark.parametrize("compact", [False, True])
def test_a_full_answer_to_a_delta_is_found_by_its_length(compact):
    payload = turn([1, 2, 3, 4], 0, compact=compact).payload
    check_count(payload, 0, 4, SHAPE, "request-1")
    with pytest.raises(RouteRowsError, match="ignored routed_experts_start_len"):
        check_count(payload, 2, 4, SHAPE, "request-1")


def test_an_answer_without_new_rows_is_right_where_none_are_wanted():
    check_count("", 3, 4, SHAPE, "request-1")
