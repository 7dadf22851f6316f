"""The compact blob: what goes in comes out, and what cannot be one is refused by name."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.delta_router_replay import RouteRows, RouteRowsError, wire
from miles_periodic.plugins.delta_router_replay.payload import (
    check,
    decode,
    num_row_bytes,
    num_rows,
)


def rows_of(num_rows, num_layers=3, top_k=2, num_experts=8, seed=0):
    drawn = np.random.default_rng(seed).random((num_rows, num_layers, num_experts))
    return np.argsort(drawn, axis=-1)[..., :top_k].astype(np.int32)


def text_of(blob):
    return base64.b64encode(blob.tobytes()).decode()


def test_the_header_is_the_sixteen_bytes_that_both_sides_agreed_on():
    blob = wire.encode(np.zeros((0, 48, 8), np.int32), first_row=7, num_experts=128)
    assert blob.tobytes() == b"MPR3" + bytes([1, 1, 8, 0, 48, 0, 0, 0, 7, 0, 0, 0])


@given(
    num_rows=st.integers(0, 9),
    num_layers=st.integers(1, 5),
    top_k=st.integers(1, 4),
    num_experts=st.sampled_from([4, 256, 257, 65_536, 65_537]),
    first_row=st.integers(0, 2**32 - 1),
)
def test_rows_come_back_as_they_were(num_rows, num_layers, top_k, num_experts, first_row):
    shape = (num_rows, num_layers, top_k)
    rows = np.random.default_rng(0).integers(0, num_experts, shape, dtype=np.int32)
    header, back = wire.decode(wire.encode(rows, first_row, num_experts).tobytes())
    assert header.first_row == first_row
    assert np.array_equal(back, rows)


@pytest.mark.parametrize(
    ("num_experts", "itemsize"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)]
)
def test_the_dtype_follows_the_number_of_experts_and_not_the_data(num_experts, itemsize):
    blob = wire.encode(np.ones((2, 1, 1), np.int32), 0, num_experts)
    assert wire.read_header(blob.tobytes()).itemsize == itemsize


@pytest.mark.parametrize("expert", [-1, 8])
def test_an_id_that_a_compact_dtype_would_wrap_is_refused_by_row_and_layer(expert):
    rows = rows_of(4)
    rows[2, 1, 0] = expert
    with pytest.raises(wire.WireError, match="row 2, layer 1 names experts"):
        wire.encode(rows, 0, num_experts=8)


@pytest.mark.parametrize("rows", [np.zeros((2, 2), np.int32), np.zeros((2, 2, 2), np.float32)])
def test_what_are_no_rows_is_refused(rows):
    with pytest.raises(wire.WireError, match="integers of shape"):
        wire.encode(rows, 0, 8)


@pytest.mark.parametrize("first_row", [-1, 2**32])
def test_a_first_row_that_the_header_cannot_hold_is_refused(first_row):
    with pytest.raises(wire.WireError, match="do not fit the header"):
        wire.encode(rows_of(1), first_row, 8)


def test_no_expert_ids_begin_as_a_blob_does():
    assert int.from_bytes(wire.MAGIC, "little") > 1 << 16


def changed(blob, place, value):
    return blob[:place] + bytes([value]) + blob[place + 1 :]


BLOB = wire.encode(rows_of(3), 5, 8).tobytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (BLOB[:10], "fewer than a header"),
        (changed(BLOB, 4, 2), "install the same miles-periodic"),
        (changed(BLOB, 5, 3), "itemsize 3"),
        (changed(BLOB, 6, 0), "top_k 0"),
        (BLOB[:-1], "do not divide into rows"),
        (b"JUNK" + BLOB[4:], "not with"),
    ],
)
def test_bytes_that_are_no_blob_are_refused_and_say_why(content, words):
    with pytest.raises(wire.WireError, match=words):
        wire.decode(content)


def test_a_client_reads_a_blob_where_it_would_read_int32():
    rows = rows_of(6)
    blob = text_of(wire.encode(rows, 0, 8))
    stock = text_of(rows)
    assert np.array_equal(decode(blob, 3, 2), decode(stock, 3, 2))


def test_a_blob_of_another_start_than_was_asked_for_is_refused():
    held = RouteRows(3, 2, 8)
    held.append(0, rows_of(4))
    with pytest.raises(RouteRowsError, match=r"begins at row 0; row 4 was asked for"):
        held.append(4, text_of(wire.encode(rows_of(2), 0, 8)), request_id="r")
    assert len(held) == 4


def test_a_blob_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="4 layers and top 2"):
        decode(text_of(wire.encode(rows_of(2, num_layers=4), 0, 8)), 3, 2)


def test_a_blob_whose_ids_are_out_of_the_models_range_is_refused():
    held = RouteRows(3, 2, 4)
    with pytest.raises(RouteRowsError, match="of 4"):
        held.append(0, text_of(wire.encode(rows_of(9), 0, 8)))


def test_raw_uint8_bytes_are_never_taken_for_a_blob():
    rows = np.frombuffer(wire.MAGIC * 6, np.uint8).reshape(4, 3, 2)
    assert np.array_equal(decode(rows.tobytes(), 3, 2, wire_dtype="uint8"), rows)


@pytest.mark.parametrize("count", [0, 1, 7, 100])
@pytest.mark.parametrize("num_experts", [8, 300])
def test_rows_are_counted_without_decoding_in_both_forms(count, num_experts):
    rows = rows_of(count, num_experts=8)
    for text in (text_of(rows), text_of(wire.encode(rows, 3, num_experts))):
        assert num_rows(text, 3, 2) == count


def test_bytes_of_rows_do_not_count_the_header():
    assert num_row_bytes(text_of(wire.encode(rows_of(5), 0, 8))) == 5 * 3 * 2


@pytest.mark.parametrize(
    "text", ["", "!" * 40, "ä" * 30, text_of(np.frombuffer(changed(BLOB, 4, 9), np.uint8))]
)
def test_counting_rows_of_what_cannot_be_read_raises_nothing(text):
    assert num_rows(text, 3, 2) in (None, 0, 1)


@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from([12, 255, 256, 257]))
def test_a_repeated_expert_is_found_exactly_where_sorting_finds_one(seed, top_k, num_experts):
    rows = np.random.default_rng(seed).integers(0, num_experts, (3, 2, top_k), dtype=np.int32)
    ordered = np.sort(rows, axis=-1)
    repeats = (ordered[..., 1:] == ordered[..., :-1]).any()
    assert (check(rows, num_experts, max_constant_run=None) is not None) == repeats


@pytest.mark.parametrize("bad", [-1, 8, -(2**31), 2**31 - 1])
def test_an_id_outside_of_the_experts_is_found_in_any_integer_dtype(bad):
    rows = rows_of(3)
    rows[1, 2, 0] = bad
    assert wire.any_outside(rows, 8) and not wire.any_outside(rows_of(3), 8)
    assert "row 1, layer 2" in check(rows, 8, max_constant_run=None)
