import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_periodic.plugins.chunked_optimizer_offload.layout import ALIGNMENT, lay_out
from miles_periodic.plugins.chunked_optimizer_offload.schedule import plan_chunks


@st.composite
def plans(draw):
    """Extents of a layout, some left out, and the chunks over them."""
    lengths = draw(st.lists(st.integers(0, 3000), min_size=1, max_size=20))
    extents = lay_out(lengths, block_length=2048).extents
    kept = draw(st.lists(st.integers(0, len(lengths) - 1), unique=True))
    chosen = {number: extents[number] for number in kept}
    chunk_length = ALIGNMENT * draw(st.integers(1, 12))
    return chosen, chunk_length, plan_chunks(chosen, chunk_length)


@settings(max_examples=40)
@given(plans())
def test_every_element_is_in_one_piece(plan):
    extents, _, chunks = plan
    found = sorted((p.parameter, p.start, p.stop) for chunk in chunks for p in chunk.pieces)
    ends = dict.fromkeys(extents, 0)
    for parameter, start, stop in found:
        assert ends[parameter] == start < stop
        ends[parameter] = stop
    assert ends == {number: extent.length for number, extent in extents.items()}


@settings(max_examples=40)
@given(plans())
def test_no_chunk_is_over_its_length_and_pieces_do_not_overlap_in_the_slot(plan):
    _, chunk_length, chunks = plan
    for chunk in chunks:
        end = 0
        for piece in chunk.pieces:
            assert piece.slot_start >= end and piece.slot_start % ALIGNMENT == 0
            end = piece.slot_start + piece.stop - piece.start
        assert end <= chunk.length <= chunk_length


@settings(max_examples=40)
@given(plans())
def test_pieces_start_aligned_in_their_parameter(plan):
    assert all(p.start % ALIGNMENT == 0 for chunk in plan[2] for p in chunk.pieces)


@settings(max_examples=40)
@given(plans())
def test_every_chunk_but_the_last_is_full(plan):
    _, chunk_length, chunks = plan
    assert all(chunk.length == chunk_length for chunk in chunks[:-1])


@settings(max_examples=40)
@given(plans())
def test_the_runs_of_a_chunk_bring_each_piece_from_its_place_in_host_memory(plan):
    extents, _, chunks = plan
    for chunk in chunks:
        brought = {
            run.slot_start + i: (run.block, run.start + i)
            for run in chunk.runs
            for i in range(run.length)
        }
        assert len(brought) == sum(run.length for run in chunk.runs)
        for piece in chunk.pieces:
            extent = extents[piece.parameter]
            for i in range(piece.stop - piece.start):
                place = (extent.block, extent.start + piece.start + i)
                assert brought[piece.slot_start + i] == place


@settings(max_examples=40)
@given(plans())
def test_no_run_touches_a_parameter_that_is_left_out(plan):
    extents, _, chunks = plan
    own = {(e.block, e.start + i) for e in extents.values() for i in range(e.length + ALIGNMENT)}
    for chunk in chunks:
        for run in chunk.runs:
            assert (run.block, run.start) in own
            assert (run.block, run.start + run.length - 1) in own


def test_neighbours_move_in_one_copy():
    extents = dict(enumerate(lay_out([100, 200, 300]).extents))
    (chunk,) = plan_chunks(extents, 1024)
    assert len(chunk.pieces) == 3 and len(chunk.runs) == 1


def test_a_parameter_left_out_in_between_makes_two_copies():
    extents = dict(enumerate(lay_out([100, 200, 300]).extents))
    del extents[1]
    (chunk,) = plan_chunks(extents, 1024)
    assert len(chunk.runs) == 2


@pytest.mark.parametrize("length", [0, ALIGNMENT - 1, ALIGNMENT + 1])
def test_a_chunk_length_that_is_not_aligned_is_refused(length):
    with pytest.raises(ValueError, match=str(length)):
        plan_chunks({}, length)
