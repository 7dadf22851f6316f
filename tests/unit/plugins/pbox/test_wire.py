"""Frames of a command's response, however they are cut on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_periodic.plugins.pbox.wire import FRAME, MAX_FRAME_BYTES, FrameReader, packed_frame

FRAMES = st.lists(st.tuples(st.sampled_from([b"o", b"e", b"r"]), st.binary(max_size=50)))


@given(FRAMES, st.lists(st.integers(1, 20), min_size=1))
def test_frames_come_out_as_they_went_in_wherever_they_are_cut(frames, cuts):
    stream, reader, found = b"".join(packed_frame(*f) for f in frames), FrameReader(), []
    for number in range(len(stream)):
        size = cuts[number % len(cuts)]
        piece, stream = stream[:size], stream[size:]
        found += reader.feed(piece)
    assert found == frames


def test_a_kind_that_is_not_ours_is_refused():
    with pytest.raises(ValueError):
        FrameReader().feed(packed_frame(b"z", b""))


def test_a_length_beyond_all_of_ours_is_refused_before_it_is_read():
    with pytest.raises(ValueError):
        FrameReader().feed(FRAME.pack(b"o", MAX_FRAME_BYTES + 1))
