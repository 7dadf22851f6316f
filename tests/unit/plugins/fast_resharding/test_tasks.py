from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.fast_resharding.targets import Piece
from miles_periodic.plugins.fast_resharding.tasks import segments


@given(
    groups=st.integers(1, 5),
    before=st.integers(0, 4),
    rows=st.integers(1, 4),
    after=st.integers(0, 4),
    first=st.integers(0, 3),
    behind=st.integers(0, 3),
    data=st.data(),
)
def test_segments_lead_every_row_that_a_piece_fills_to_its_row_of_the_source(
    groups, before, rows, after, first, behind, data
):
    among = first + rows + behind
    piece = Piece("source", (), groups, before + rows + after, before, rows, first, among)
    start = data.draw(st.integers(0, groups * among - 1))
    count = data.draw(st.integers(1, groups * among - start))
    found = [
        (segment.from_row + n, start + segment.to_row + n)
        for segment in segments(piece, start, count)
        for n in range(segment.num_rows)
    ]
    every = [
        (group * piece.group_rows + before + row, group * among + first + row)
        for group in range(groups)
        for row in range(rows)
    ]
    assert found == [pair for pair in every if start <= pair[1] < start + count]
