"""Rows of routes: appended once, compact, refused without a trace where they are none."""

import base64
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.delta_router_replay import RouteRows, RouteRowsError

LAYERS, TOP_K, EXPERTS = 3, 2, 8


def routes(num_rows, *, experts=EXPERTS, seed=0):
    generator = np.random.default_rng(seed)
    scores = generator.random((num_rows, LAYERS, experts))
    return scores.argsort(axis=-1)[..., :TOP_K].astype(np.int32)


def text(rows):
    return base64.b64encode(rows.astype(np.int32).tobytes()).decode()


def held(num_rows=5):
    rows = RouteRows(LAYERS, TOP_K, EXPERTS)
    rows.append(0, text(routes(num_rows)))
    return rows


@given(cuts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 99))
def test_deltas_in_any_cut_give_the_same_rows_as_one_full_payload(cuts, seed):
    full = routes(40, seed=seed)
    rows = RouteRows(LAYERS, TOP_K, EXPERTS)
    for end in [*sorted(cuts), 40]:
        rows.append(rows.next_start, text(full[rows.next_start : end]))
    assert rows.array().astype(np.int32).tobytes() == full.tobytes()


@pytest.mark.parametrize(
    "form",
    [
        text,
        lambda r: r.tobytes(),
        lambda r: r,
        lambda r: r.astype(np.uint8),
        lambda r: r.astype(np.uint16),
        lambda r: r.reshape(len(r), -1),
    ],
)
def test_every_known_form_of_payload_is_taken(form):
    full = routes(4)
    rows = RouteRows(LAYERS, TOP_K, EXPERTS)
    assert rows.append(0, form(full)) == 4
    assert (rows.array() == full).all()


@pytest.mark.parametrize(("experts", "dtype"), [(8, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_the_dtype_comes_from_the_number_of_experts_and_not_from_the_data(experts, dtype):
    rows = RouteRows(LAYERS, TOP_K, experts)
    rows.append(0, text(routes(2, experts=8)))
    assert rows.array().dtype == dtype


def test_a_row_once_held_is_never_overwritten():
    rows = held(5)
    before = rows.array().copy()
    assert rows.append(0, text(routes(7, seed=1))) == 2
    assert (rows.array()[:5] == before).all()
    assert (rows.array()[5:] == routes(7, seed=1)[5:]).all()


def test_an_empty_delta_is_valid():
    rows = held(5)
    assert rows.append(5, "") == 0
    assert rows.next_start == 5


def bad_payloads():
    outside = routes(2)
    outside[1, 2, 0] = EXPERTS
    negative = routes(2)
    negative[0, 0, 0] = -1
    twice = routes(2)
    twice[1, 0] = 3
    return {
        "an expert out of range": text(outside),
        "a padding row": text(negative),
        "an expert twice": text(twice),
        "text that is not base64": "@@@@",
        "a half row": base64.b64encode(b"\0" * 4 * (LAYERS * TOP_K + 1)).decode(),
        "bytes of no int32": b"\0\0\0",
        "floats": routes(2).astype(np.float32),
        "int64": routes(2).astype(np.int64),
        "another shape": np.zeros((2, TOP_K, LAYERS), np.int32),
        "nothing that is known": object(),
    }


@pytest.mark.parametrize("name", bad_payloads())
def test_a_refused_payload_changes_nothing(name):
    rows = held(5)
    before = rows.array().tobytes()
    with pytest.raises(RouteRowsError) as refusal:
        rows.append(5, bad_payloads()[name], request_id="abc")
    assert rows.array().tobytes() == before and rows.next_start == 5
    assert "abc" in str(refusal.value) and refusal.value.first_row == 5


@pytest.mark.parametrize("start", [-1, 6])
def test_a_gap_before_the_payload_is_refused(start):
    with pytest.raises(RouteRowsError, match="gap"):
        held(5).append(start, text(routes(1)))


def test_a_long_run_of_equal_rows_is_refused():
    rows = RouteRows(LAYERS, TOP_K, EXPERTS, max_constant_run=4)
    stale = np.repeat(routes(1), 5, axis=0)
    with pytest.raises(RouteRowsError, match="5 equal rows from row 0"):
        rows.append(0, text(stale))


def test_truncation_keeps_the_front_and_leaves_rows_given_out_before_alone():
    rows = held(5)
    given_out = rows.array()
    copy = given_out.copy()
    rows.truncate(3)
    rows.append(3, text(routes(4, seed=9)))
    assert len(rows) == 7 and (given_out == copy).all()
    assert (rows.array()[3:] == routes(4, seed=9)).all()


def test_rows_given_out_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        held().array()[0] = 0


def test_appending_goes_on_after_rows_were_given_out():
    rows = held(5)
    rows.array()
    assert rows.append(5, text(routes(1))) == 1


def test_a_pipeline_rank_gets_only_its_layers():
    rows = held(5)
    assert (rows.layers(1, 3) == routes(5)[:, 1:3]).all()


def test_bytes_are_one_per_route_up_to_256_experts():
    assert held(5).nbytes == 5 * LAYERS * TOP_K


def test_a_refusal_survives_pickling():
    error = pickle.loads(pickle.dumps(RouteRowsError("x", request_id="r", first_row=1, end_row=2)))
    assert (error.request_id, error.first_row, error.end_row) == ("r", 1, 2)


def test_a_start_of_a_narrow_type_does_not_wrap_around():
    rows = held(300)
    assert rows.append(np.uint8(250), text(routes(350)[250:])) == 50


@pytest.mark.parametrize("start", [None, "0", 0.0, float("nan"), [0]])
def test_a_start_that_is_no_row_number_is_refused(start):
    rows = held(5)
    with pytest.raises(RouteRowsError, match="no row number"):
        rows.append(start, text(routes(5)))
    assert len(rows) == 5


def test_a_buffer_of_several_axes_is_read_by_its_bytes():
    rows = RouteRows(LAYERS, TOP_K, EXPERTS)
    assert rows.append(0, memoryview(routes(3))) == 3


def with_layer_of_zeros(num_rows):
    rows = routes(num_rows)
    rows[:, 0] = 0
    return rows


def test_a_layer_without_experts_is_zero_in_every_row_and_taken():
    assert RouteRows(LAYERS, TOP_K, EXPERTS).append(0, with_layer_of_zeros(4)) == 4


def test_a_layer_that_is_zero_in_one_row_only_is_refused():
    rows = routes(4)
    rows[2, 1] = 0
    with pytest.raises(RouteRowsError, match="row 2, layer 1 names an expert twice"):
        RouteRows(LAYERS, TOP_K, EXPERTS).append(0, rows)


def test_rows_that_are_zero_in_every_layer_are_refused():
    with pytest.raises(RouteRowsError, match="names an expert twice"):
        RouteRows(LAYERS, TOP_K, EXPERTS).append(0, np.zeros((2, LAYERS, TOP_K), np.int32))
