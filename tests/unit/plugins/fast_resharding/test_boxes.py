import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.fast_resharding.boxes import Box, tiling_fault


@st.composite
def tilings(draw):
    """A shape, and boxes that make it up, cut at random."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        if box.sizes[axis] < 2:
            boxes.append(box)
            continue
        at = draw(st.integers(1, box.sizes[axis] - 1))
        for start, size in ((0, at), (at, box.sizes[axis] - at)):
            offsets, sizes = list(box.offsets), list(box.sizes)
            offsets[axis] += start
            sizes[axis] = size
            boxes.append(Box(tuple(offsets), tuple(sizes)))
    return shape, boxes


@given(tilings())
def test_boxes_that_were_cut_from_a_tensor_make_it_up(tiling):
    shape, boxes = tiling
    assert tiling_fault(shape, boxes) == ""


@given(tilings(), st.data())
def test_without_one_of_its_boxes_a_tensor_has_a_gap(tiling, data):
    shape, boxes = tiling
    boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
    assert "missing" in tiling_fault(shape, boxes)


@given(tilings(), st.data())
def test_a_box_that_is_there_twice_overlaps_itself(tiling, data):
    shape, boxes = tiling
    boxes.append(boxes[data.draw(st.integers(0, len(boxes) - 1))])
    assert "overlap" in tiling_fault(shape, boxes)


def test_an_overlap_that_hides_a_gap_of_the_same_size_is_found():
    boxes = [Box((0, 0), (2, 2)), Box((1, 0), (2, 2)), Box((3, 0), (1, 2)), Box((0, 2), (4, 2))]
    assert "overlap" in tiling_fault((4, 4), [*boxes[:2], *boxes[3:], Box((3, 0), (1, 2))])


def test_boxes_that_interlock_like_a_pinwheel_make_up_a_square():
    boxes = [
        Box((0, 0), (1, 2)),
        Box((0, 2), (2, 1)),
        Box((2, 1), (1, 2)),
        Box((1, 0), (2, 1)),
        Box((1, 1), (1, 1)),
    ]
    assert tiling_fault((3, 3), boxes) == ""


@pytest.mark.parametrize(
    ("box", "fault"),
    [(Box((3,), (2,)), "reaches out"), (Box((0, 0), (4, 1)), "axes")],
)
def test_a_box_that_does_not_belong_to_the_tensor_is_named(box, fault):
    assert fault in tiling_fault((4,), [box])
