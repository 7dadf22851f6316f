from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT, aligned, lay_out

LENGTHS = st.lists(st.integers(0, 5000), max_size=30)


@settings(max_examples=40)
@given(LENGTHS)
def test_no_two_parameters_share_an_element(lengths):
    layout = lay_out(lengths, block_length=2048)
    ends: dict[int, int] = {}
    for extent in sorted(layout.extents, key=lambda e: (e.block, e.start)):
        assert extent.start >= ends.get(extent.block, 0)
        ends[extent.block] = extent.start + extent.length


@settings(max_examples=40)
@given(LENGTHS)
def test_every_parameter_lies_whole_in_one_block_and_starts_aligned(lengths):
    layout = lay_out(lengths, block_length=2048)
    assert [extent.length for extent in layout.extents] == lengths
    for extent in layout.extents:
        assert extent.start % ALIGNMENT == 0
        assert extent.start + extent.length <= layout.block_lengths[extent.block]


@settings(max_examples=40)
@given(LENGTHS)
def test_a_block_is_over_its_length_only_by_the_last_alignment_or_for_one_parameter(lengths):
    layout = lay_out(lengths, block_length=2048)
    for block, length in enumerate(layout.block_lengths):
        largest = max(extent.length for extent in layout.extents if extent.block == block)
        assert length < max(2048, 2 * largest) + ALIGNMENT


def test_neighbours_lie_side_by_side():
    first, second = lay_out([130, 10]).extents
    assert (first.start, second.start) == (0, aligned(130))


def test_a_parameter_that_does_not_fit_leaves_its_room_to_a_later_one():
    layout = lay_out([1900, 1000, 100], block_length=2048)
    assert [extent.block for extent in layout.extents] == [0, 1, 0]


def test_a_large_parameter_opens_a_block_of_a_power_of_two_that_others_share():
    layout = lay_out([5000, 3000], block_length=2048)
    assert [extent.block for extent in layout.extents] == [0, 0]
