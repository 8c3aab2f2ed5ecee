"""Messages come out of a ring as they went in, whatever their sizes, and never overwrite one another."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from distrun.runtime.transport.shared_memory import mailbox
from distrun.runtime.transport.shared_memory.mailbox import LARGEST, Mailbox
from distrun.runtime.transport.shared_memory.segment import RING, Layout, Segment, new_segment_fd


@pytest.fixture(scope="module")
def segment() -> Segment:
    fd = new_segment_fd(Layout(1).heap + (1 << 20))
    made = Segment(fd, os.fstat(fd).st_size, 1)
    os.close(fd)
    return made


def ends(segment: Segment) -> tuple[Mailbox, Mailbox]:
    """The writer's and the reader's end of an empty ring, which begins wherever the last test left it."""
    reader = Mailbox(segment, 0)
    while reader.get() is not None:
        pass
    return Mailbox(segment, 0), Mailbox(segment, 0)


def test_an_empty_box_has_no_message(segment):
    writer, reader = ends(segment)
    assert not reader
    assert reader.get() is None
    assert writer.put(b"")
    assert reader
    assert reader.get() == b""
    assert not reader


def test_a_processor_that_reorders_stores_gets_a_fence_before_each_announcement(segment, monkeypatch):
    writer, reader = ends(segment)
    seen = []
    monkeypatch.setattr(mailbox, "SEES_STORES_IN_ORDER", False)
    monkeypatch.setattr(mailbox, "full_fence", lambda: seen.append((bool(reader), reader._words[mailbox._TAIL])))
    tail = reader._words[mailbox._TAIL]
    writer.put(b"message")
    assert seen == [(False, tail)]  # the message is there, and not announced
    assert reader.get() == b"message"
    assert seen[1:] == [(True, tail), (True, tail)]  # before it is read, and before its room is free


def test_a_message_that_would_never_fit_is_not_taken(segment):
    writer, reader = ends(segment)
    with pytest.raises(AssertionError, match=str(LARGEST + 1)):
        writer.put(bytes(LARGEST + 1))
    assert not reader
    assert writer.put(bytes(LARGEST))


def test_a_full_ring_takes_nothing_until_something_is_read(segment):
    writer, reader = ends(segment)
    large = bytes(LARGEST - 8)  # with its length, exactly a quarter of the ring
    assert [writer.put(large) for _ in range(5)] == [True, True, True, True, False]
    assert not writer.put(b"")
    assert reader.get() == large
    assert writer.put(large)
    assert not writer.put(b"")


def test_rings_of_a_segment_do_not_touch_each_other(segment):
    first, second = Mailbox(segment, 0), Mailbox(segment, 1)
    ends(segment)
    for _ in range(3):
        assert Mailbox(segment, 0).put(b"\xff" * LARGEST)
    assert second.get() is None
    assert first.get() is not None


sizes = st.one_of(
    st.integers(0, 40),
    st.sampled_from([LARGEST, LARGEST - 1, LARGEST - 7, LARGEST - 8, LARGEST - 9]),
    st.integers(0, LARGEST),
)


@given(
    st.lists(st.tuples(sizes, st.integers(0, 255)), max_size=40),
    st.randoms(use_true_random=False),
    st.integers(0, RING // 8),
)
def test_any_sequence_of_messages_arrives_whole_and_in_order(segment, sequence, generator, beginning):
    writer, reader = ends(segment)
    for step in (beginning // 2, beginning - beginning // 2):  # so that the ring's seam is anywhere
        writer.put(bytes(min(8 * step, LARGEST)))
        reader.get()
    messages = [bytes([filling]) * size for size, filling in sequence]
    waiting = list(messages)
    received = []
    room = RING
    while len(received) < len(messages):
        if waiting and generator.random() < 0.6:
            message = waiting[0]
            needs = 8 + -(-len(message) // 8) * 8
            assert writer.put(message) == (needs <= room)
            if needs <= room:
                room -= needs
                del waiting[0]
        else:
            message = reader.get()
            assert (message is None) == (room == RING)
            if message is not None:
                room += 8 + -(-len(message) // 8) * 8
                received.append(message)
    assert received == messages
    assert not reader
