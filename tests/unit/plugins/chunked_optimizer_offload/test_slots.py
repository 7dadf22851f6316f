import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT
from miles_periodic.plugins.chunked_optimizer_offload.slots import (
    MAX_SLOTS,
    MIN_SLOTS,
    Costs,
    fit_slots,
)

#: Bytes of an element of master and moments.
FP32 = (4, 4, 4)
NARROW = (4, 2, 2)


@settings(max_examples=40)
@given(
    workspace_bytes=st.integers(0, 1 << 22),
    chunk_bytes=st.none() | st.integers(0, 1 << 20),
    item_bytes=st.sampled_from([FP32, NARROW]),
    passing=st.sampled_from([0, 8, 12]),
)
def test_slots_that_fit_keep_the_limit_and_others_are_refused(
    workspace_bytes, chunk_bytes, item_bytes, passing
):
    costs = Costs.of(item_bytes, passing)
    try:
        num_slots, length = fit_slots(workspace_bytes, chunk_bytes, costs)
    except ValueError:
        return
    assert costs.num_bytes(num_slots, length) <= workspace_bytes
    assert MIN_SLOTS <= num_slots <= MAX_SLOTS and length and length % ALIGNMENT == 0
    assert chunk_bytes is None or length * costs.slot <= chunk_bytes


@settings(max_examples=40)
@given(
    chunk_bytes=st.none() | st.integers(12 * ALIGNMENT, 1 << 16),
    item_bytes=st.sampled_from([FP32, NARROW]),
)
def test_the_least_workspace_that_the_error_names_is_enough(chunk_bytes, item_bytes):
    costs = Costs.of(item_bytes, 8)
    with pytest.raises(ValueError, match="workspace_bytes=1 is too small") as refused:
        fit_slots(1, chunk_bytes, costs)
    least = int(str(refused.value).partition("at least ")[2].partition(",")[0])
    fit_slots(least, chunk_bytes, costs)
    with pytest.raises(ValueError, match=f"at least {least}"):
        fit_slots(least - 1, chunk_bytes, costs)


def test_a_chunk_too_small_for_one_vector_is_refused_with_the_least():
    with pytest.raises(ValueError, match="chunk_bytes=1535 .* at least 1536"):
        fit_slots(1 << 20, 1535, Costs.of(FP32, 0))


def test_a_fourth_slot_is_used_only_where_it_fits():
    costs = Costs.of(FP32, 0)
    least = costs.num_bytes(MIN_SLOTS, ALIGNMENT)
    assert fit_slots(least, 12 * ALIGNMENT, costs) == (3, ALIGNMENT)
    assert fit_slots(1 << 20, 12 * ALIGNMENT, costs) == (4, ALIGNMENT)
