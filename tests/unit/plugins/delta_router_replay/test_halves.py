"""Two halves become what one server would have answered, or an error that names what is missing."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.delta_router_replay.halves import join
from miles_periodic.plugins.delta_router_replay.payload import RouteRowsError

LAYERS, TOP_K = 3, 2


def text(rows):
    return base64.b64encode(np.ascontiguousarray(rows, np.int32).tobytes()).decode()


@st.composite
def requests(draw):
    prompt = draw(st.integers(1, 40))
    start = draw(st.integers(0, prompt))
    response = draw(st.integers(1, 12))
    return start, prompt, prompt + response


def halves_of(start, prompt, total, seed=0):
    """The true rows, and what each server answers for them: decode's prompt rows are garbage."""
    generator = np.random.default_rng(seed)
    true = generator.integers(0, 64, (total - 1, LAYERS, TOP_K)).astype(np.int32)
    decode = true[start:].copy()
    decode[: prompt - start] = generator.integers(64, 99, decode[: prompt - start].shape)
    return true, true[start:prompt], decode


@given(requests(), st.integers(0, 1000))
def test_the_joined_rows_are_those_that_one_server_would_have_answered(request_, seed):
    start, prompt, total = request_
    true, prefill, decode = halves_of(start, prompt, total, seed)
    joined = join(
        text(prefill), text(decode), start=start, num_prompt_tokens=prompt, num_tokens=total
    )
    assert joined == text(true[start:])


@given(requests())
def test_rows_that_prefill_answers_beyond_the_prompt_are_not_taken(request_):
    start, prompt, total = request_
    true, prefill, decode = halves_of(start, prompt, total)
    longer = np.concatenate([prefill, np.full((1, LAYERS, TOP_K), 98, np.int32)])
    joined = join(
        text(longer), text(decode), start=start, num_prompt_tokens=prompt, num_tokens=total
    )
    assert joined == text(true[start:])


@given(requests(), st.sampled_from([1, 2, 4]))
def test_compact_halves_give_a_compact_answer(request_, itemsize):
    start, prompt, total = request_
    true, prefill, decode = halves_of(start, prompt, total)
    header = b"MPR3" + bytes([1, itemsize, TOP_K, 0, LAYERS, 0, 0, 0]) + start.to_bytes(4, "little")

    def blob(rows):
        return base64.b64encode(header + rows.astype(f"<u{itemsize}").tobytes()).decode()

    joined = join(
        blob(prefill), blob(decode), start=start, num_prompt_tokens=prompt, num_tokens=total
    )
    assert joined == blob(true[start:])


def test_a_missing_prefill_half_names_the_request_and_its_rows():
    _, _, decode = halves_of(3, 10, 14)
    with pytest.raises(RouteRowsError, match=r"request r-1, rows \[3, 10\): the prefill server"):
        join(None, text(decode), start=3, num_prompt_tokens=10, num_tokens=14, request_id="r-1")


def test_a_missing_decode_half_names_the_request_and_its_rows():
    _, prefill, _ = halves_of(3, 10, 14)
    with pytest.raises(RouteRowsError, match=r"request r-1, rows \[3, 13\): the decode server"):
        join(text(prefill), None, start=3, num_prompt_tokens=10, num_tokens=14, request_id="r-1")


def test_a_prefill_half_is_not_missed_where_every_row_of_the_prompt_is_held():
    true, _, decode = halves_of(10, 10, 14)
    joined = join(None, text(decode), start=10, num_prompt_tokens=10, num_tokens=14)
    assert joined == text(true[10:])


def test_a_prefill_half_that_is_too_short_is_refused():
    _, prefill, decode = halves_of(3, 10, 14)
    with pytest.raises(RouteRowsError, match="7 rows of 24 bytes were due"):
        join(text(prefill[1:]), text(decode), start=3, num_prompt_tokens=10, num_tokens=14)


def test_a_decode_half_with_other_rows_than_the_response_needs_is_refused():
    _, prefill, decode = halves_of(3, 10, 14)
    with pytest.raises(RouteRowsError, match="not 10 rows"):
        join(text(prefill), text(decode)[:-8], start=3, num_prompt_tokens=10, num_tokens=14)


def test_halves_of_different_forms_are_refused():
    _, prefill, decode = halves_of(3, 10, 14)
    blob = b"MPR3" + bytes(12) + decode.astype(np.uint8).tobytes()
    with pytest.raises(RouteRowsError, match="different forms"):
        join(
            text(prefill),
            base64.b64encode(blob).decode(),
            start=3,
            num_prompt_tokens=10,
            num_tokens=14,
        )


@pytest.mark.parametrize("half", ["not base64!", "é"])
def test_a_half_that_is_no_base64_text_is_refused(half):
    with pytest.raises(RouteRowsError, match="no base64"):
        join(half, half, start=0, num_prompt_tokens=1, num_tokens=2)


@pytest.mark.parametrize(("start", "prompt", "total"), [(-1, 3, 4), (4, 3, 5), (0, 5, 4)])
def test_a_start_outside_of_the_prompt_is_refused(start, prompt, total):
    with pytest.raises(RouteRowsError, match="does not go with"):
        join("", "", start=start, num_prompt_tokens=prompt, num_tokens=total)


def test_a_prefill_server_that_ignored_the_start_is_refused():
    true, _, decode = halves_of(2, 6, 10)
    with pytest.raises(RouteRowsError, match="where 4 rows"):
        join(text(true[:6]), text(decode), start=2, num_prompt_tokens=6, num_tokens=10)
