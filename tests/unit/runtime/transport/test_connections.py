"""Channels and streams between two sockets: whatever the sizes, the pace and the end."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from in_process.connected_ranks import End, pair_of_sockets, turn_until

from distrun.runtime.transport.channel import LARGEST_FRAME, Channel
from distrun.runtime.transport.connections import ConnectionSet, Stream
from distrun.runtime.transport.shared_memory.mailbox import LARGEST

DEADLINE = 60_000  # milliseconds


OPEN: list[socket.socket | ConnectionSet] = []
"""Connections that are closed at the end of a test."""


@pytest.fixture(autouse=True)
def _closes_all() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def both(kind: type[Channel | Stream], buffer: int = 0) -> tuple[End, End]:
    pair = pair_of_sockets()
    for connection in pair if buffer else ():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    ends = End(kind, pair[0]), End(kind, pair[1])
    OPEN.extend(end.connections for end in ends)
    return ends


def half(kind: type[Channel | Stream], pair: tuple[socket.socket, socket.socket] | None = None) -> tuple[Any, End]:
    """Return a socket, and the end of a connection with it."""
    raw, connection = pair or socket.socketpair()
    end = End(kind, connection)
    OPEN.extend((raw, end.connections))
    return raw, end


def array(count: int, seed: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(seed).bytes(count), np.uint8)


sizes = st.lists(st.one_of(st.integers(0, 300), st.sampled_from([4095, 65_536, LARGEST, 1_000_003])), max_size=8)


@given(sizes, sizes, st.sampled_from([0, 4096]))
def test_messages_of_all_sizes_arrive_whole_and_in_order_in_both_directions(forth, back, buffer):
    one, other = both(Channel, buffer)
    sent = [[array(min(size, LARGEST), seed).tobytes() for seed, size in enumerate(way)] for way in (forth, back)]
    for end, messages in zip((one, other), sent, strict=True):
        for message in messages:
            end.it.send(message)
    turn_until(lambda: len(other.messages) == len(forth) and len(one.messages) == len(back), one, other)
    assert other.messages == sent[0]
    assert one.messages == sent[1]
    one.connections.close()
    other.connections.close()
    assert one.reasons == other.reasons == []


class Ahead(socket.socket):
    """Takes all that the kernel has at once and gives it away in small pieces, as an encrypted connection may."""

    reads_ahead = True

    def recv(self, size, flags=0):
        if not (kept := getattr(self, "kept", b"")):
            kept = super().recv(size, flags)
        self.kept = kept[7:]
        return kept[:7]


def test_what_was_read_ahead_is_taken_though_no_poll_tells_of_it():
    raw, connection = socket.socketpair()
    _, end = half(Channel, (raw, Ahead(fileno=connection.detach())))
    messages = [b"x" * size for size in range(30)]
    raw.sendall(b"".join(struct.pack("<I", len(message)) + message for message in messages))
    end.connections.progress()
    assert end.messages == messages


@given(st.lists(st.binary(max_size=20), max_size=10), st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_messages_may_be_torn_anywhere(messages, pieces):
    raw, connection = socket.socketpair()
    end = End(Channel, connection)
    data = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    while data:
        for piece in pieces:
            raw.sendall(data[:piece])
            data = data[piece:]
            end.connections.progress()
    assert end.messages == messages
    raw.close()
    end.connections.close()


def test_sending_never_blocks_though_nobody_reads():
    one, other = both(Channel, 4096)
    messages = [array(LARGEST, seed).tobytes() for seed in range(5)]
    for message in messages:
        one.it.send(message)  # over 1 MB, of which the kernel takes a few kB
        one.connections.progress()
    turn_until(lambda: len(other.messages) == 5, one, other)
    assert other.messages == messages
    assert not select.select([one.connections.fd], [], [], 0)[0], "it still wants to write"


def test_a_message_longer_than_any_is_a_loss_before_it_is_read():
    raw, end = half(Channel)
    raw.sendall(struct.pack("<I", 3) + b"one" + struct.pack("<I", LARGEST_FRAME + 1))
    end.connections.progress()
    assert end.messages == [b"one"]
    assert end.reasons == [f"it sent a message of {LARGEST_FRAME + 1} bytes, and none is larger than {LARGEST_FRAME}"]
    end.it.send(b"nobody hears this")


@pytest.mark.parametrize("tail", [b"", b"\x03", b"\x03\0\0\0", b"\x03\0\0\0on"], ids=repr)
def test_the_end_of_a_connection_is_told_once_after_what_came_before(tail):
    raw, end = half(Channel)
    raw.sendall(struct.pack("<I", 3) + b"one" + tail)
    raw.close()
    turn_until(lambda: end.reasons, end)
    end.connections.progress()
    end.it.send(b"nobody hears this")
    assert (end.messages, end.reasons) == ([b"one"], ["its connection was closed"])


def test_a_broken_connection_is_told_with_its_reason():
    raw, end = half(Channel, pair_of_sockets())
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()  # a reset
    turn_until(lambda: end.reasons, end)
    assert end.reasons == ["its connection broke (Connection reset by peer)"]


def test_last_words_are_messages_though_sending_has_failed_before():
    raw, ours = half(Channel, pair_of_sockets())
    raw.sendall(struct.pack("<I", 11) + b"why I leave")
    raw.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            ours.it.socket.send(b"x")
    ours.it.send(b"y")
    assert ours.reasons == []
    turn_until(lambda: ours.reasons, ours)
    assert ours.messages == [b"why I leave"]


@given(sizes, sizes, st.sampled_from([0, 16_384]), st.data())
def test_arrays_arrive_in_order_in_both_directions_whoever_is_ahead(forth, back, buffer, data):
    ends = both(Stream, buffer)
    arrays = [[array(size, seed) for seed, size in enumerate(way)] for way in (forth, back)]
    rooms = [[np.zeros(size, np.uint8) for size in way] for way in (back, forth)]
    receipts = []
    steps = [("send", end, item) for end in (0, 1) for item in arrays[end]]
    steps += [("receive", end, item) for end in (0, 1) for item in rooms[end]]
    order = data.draw(st.permutations(range(len(steps))))
    queues = {(kind, end): [step[2] for step in steps if step[:2] == (kind, end)] for kind, end, _ in steps}
    for place in order:  # in any order, but each queue in its own
        kind, end, _ = steps[place]
        item = queues[kind, end].pop(0)
        if kind == "send":
            ends[end].it.send(item.data)
        else:
            receipts.append(ends[end].it.receive(item.data))
        if data.draw(st.booleans()):
            ends[data.draw(st.integers(0, 1))].connections.progress()
    turn_until(lambda: not any(receipt.left for receipt in receipts), *ends)
    for sent, received in zip(arrays, reversed(rooms), strict=True):
        assert [item.tobytes() for item in sent] == [item.tobytes() for item in received]
    for end in ends:
        assert not end.it.is_receiving
        assert not end.it.is_sending
        end.connections.close()
        assert end.reasons == []


def test_what_is_sent_is_needed_until_the_kernel_has_it():
    one, other = both(Stream, 4096)
    sent, room = array(1_000_000, 1), np.zeros(1_000_000, np.uint8)
    one.it.send(sent.data)
    assert one.it.is_sending
    one.connections.progress()
    assert one.it.is_sending, "the peer does not read"
    other.it.receive(room.data)
    turn_until(lambda: not other.it.is_receiving, one, other)
    assert not one.it.is_sending
    assert room.tobytes() == sent.tobytes()


def test_a_peer_that_is_ahead_does_not_keep_us_busy():
    one, other = both(Stream)
    one.it.send(array(1000, 1).data)
    other.sleep()
    other.connections.progress()  # no call has asked for it yet: it is not looked at again
    assert not select.select([other.connections.fd], [], [], 0)[0], "it is looked at again and again"
    room = np.zeros(1000, np.uint8)
    assert other.it.receive(room.data).left == 0
    assert room.tobytes() == array(1000, 1).tobytes()


def test_the_end_of_an_idle_stream_is_no_loss():
    one, other = both(Stream)
    one.connections.close()
    other.sleep()
    other.connections.progress()
    assert other.reasons == []
    assert not select.select([other.connections.fd], [], [], 0)[0]


def test_what_was_sent_before_a_hang_up_still_arrives():
    sent = array(50_000, 1)
    ours, theirs = both(Stream)
    theirs.it.send(sent.data)
    poll = select.poll()
    poll.register(ours.it.socket, select.POLLIN)
    assert poll.poll(DEADLINE)
    ours.it.socket.shutdown(socket.SHUT_WR)  # both directions shut is what a hang-up is
    theirs.it.socket.shutdown(socket.SHUT_WR)
    poll.modify(ours.it.socket, select.POLLHUP)
    assert poll.poll(DEADLINE)
    for _ in range(3):
        ours.connections.progress()
    assert ours.reasons == []
    received = np.empty_like(sent)
    assert ours.it.receive(received.data).left == 0
    assert np.array_equal(received, sent)
    ours.it.receive(np.empty(1, np.uint8).data)
    assert len(ours.reasons) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_a_stream_is_a_loss_to_whoever_waits_for_more(when):
    one, other = both(Stream)
    one.it.send(array(10, 1).data)
    room = np.zeros(11, np.uint8)
    if when == "before":
        receipt = other.it.receive(room.data)
        one.connections.close()
        turn_until(lambda: other.reasons, other)
    else:
        one.connections.close()
        other.sleep()
        other.connections.progress()
        receipt = other.it.receive(room.data)
        turn_until(lambda: other.reasons, other)
    assert receipt.left == 1
    assert other.reasons == ["its connection was closed"]


def test_sending_to_somebody_who_is_gone_is_a_loss():
    raw, end = half(Stream, pair_of_sockets())
    raw.close()
    end.it.send(array(8_000_000, 1).data)
    turn_until(lambda: end.reasons, end)
    assert end.reasons[0].startswith("its connection")
    end.it.send(array(10, 1).data)
    end.it.receive(np.zeros(10, np.uint8).data)
