from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.fast_resharding.targets import Piece
from miles_periodic.plugins.fast_resharding.tasks import segments


@given(
    groups=st.integers(1, 5),
    before=st.integers(0, 4),
    rows=st.integers(1, 4),
    after=st.integers(0, 4),
    data=st.data(),
)
def test_segments_lead_every_row_of_the_target_to_its_row_of_the_source(
    groups, before, rows, after, data
):
    piece = Piece("source", (), groups, before + rows + after, before, rows)
    first = data.draw(st.integers(0, groups * rows - 1))
    count = data.draw(st.integers(1, groups * rows - first))
    found = [
        (segment.from_row + n, first + segment.to_row + n)
        for segment in segments(piece, first, count)
        for n in range(segment.num_rows)
    ]
    source_rows = [g * piece.group_rows + before + r for g in range(groups) for r in range(rows)]
    assert found == [(source_rows[row], row) for row in range(first, first + count)]
