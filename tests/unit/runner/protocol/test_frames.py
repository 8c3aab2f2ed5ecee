"""Frames survive any cutting of their stream, and what is no frame is noticed."""

import pytest
from hypothesis import given, strategies as st

from distrun.errors import LaunchError
from distrun.runner.protocol.frames import HEADER, MAX_PAYLOAD, Frame, FrameDecoder, FrameKind, split_payload

FRAMES = st.builds(Frame, st.sampled_from(FrameKind), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=300))


@given(st.lists(FRAMES), st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_back_however_their_bytes_are_cut(frames, cuts):
    stream = b"".join(frame.encode() for frame in frames)
    decoder, received, position, turn = FrameDecoder(), [], 0, 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        received += decoder.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert received == frames


@given(st.integers(-(2**62), 2**62), st.floats(allow_nan=False))
def test_numbers_come_back_as_they_were(whole, real):
    assert Frame.number(FrameKind.ACK, whole).as_int() == whole
    assert Frame.number(FrameKind.FINISH, real).as_float() == real


@pytest.mark.parametrize("data", [b"Welcome to host worker-1!\n", HEADER.pack(FrameKind.STDOUT, 0, MAX_PAYLOAD + 1)])
def test_what_is_no_frame_is_an_error_that_shows_it(data):
    with pytest.raises(LaunchError, match="is not a frame of ours"):
        list(FrameDecoder().feed(data))


@given(st.binary(max_size=100), st.integers(1, 30))
def test_long_data_travels_in_pieces(data, size):
    cut = list(split_payload(FrameKind.RESULT, data, 3, size))
    assert b"".join(frame.payload for frame in cut) == data
    assert all(0 < len(frame.payload) <= size and frame.process == 3 for frame in cut)
