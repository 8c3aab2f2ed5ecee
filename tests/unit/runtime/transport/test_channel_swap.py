"""A swap over a channel sends what the ordinary way sends, and loses nothing of what comes instead of the answer."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st
from in_process.connected_ranks import End, turn_until
from session.hypothesis_profiles import examples

from distrun.runtime.operations.reduction import Average, Sum, reduction
from distrun.runtime.transport.channel import Channel, ChannelSwap
from distrun.runtime.transport.shared_memory.swap import ANSWERED, NO_ROOM, SENT

HEADER = b"S\0\0\0\7\0\0\0"
LOOKS = 3


class Peer:
    """This rank's end of a channel, and the socket at the other end, which the test plays."""

    def __init__(self) -> None:
        self.socket, connection = socket.socketpair()
        self.socket.settimeout(60)
        self.end = End(Channel, connection)
        self.before_the_end: list[bytes] | None = None
        on_close = self.end.it._on_close

        def closed(reason: str) -> None:
            self.before_the_end = list(self.end.messages)
            on_close(reason)

        self.end.it._on_close = closed
        self.prepare = ChannelSwap(self.end.it).prepare

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.end.connections.close()
        self.socket.close()

    def receive(self, nbytes: int) -> bytes:
        return self.socket.recv(nbytes, socket.MSG_WAITALL)


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def test_nothing_is_swapped_behind_a_message_that_is_not_sent_or_received_as_a_whole():
    array = np.ones(3)
    with Peer() as peer:
        peer.socket.sendall(framed(b"torn")[:5])
        peer.end.it.look()
        assert peer.prepare(HEADER, 3, array.dtype, 1.0)(array, array, LOOKS) == NO_ROOM
        peer.socket.sendall(framed(b"torn")[5:])
        turn_until(lambda: peer.end.messages == [b"torn"], peer.end)
    with Peer() as peer:
        while not peer.end.it.is_sending:
            peer.end.it.send(bytes(65_536))
        assert peer.prepare(HEADER, 3, array.dtype, 1.0)(array, array, LOOKS) == NO_ROOM
    assert array.tolist() == [1.0] * 3


@examples(gate=60, full=500)
@given(
    count=st.one_of(st.integers(0, 40), st.sampled_from([1024, 8192])),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    op=st.sampled_from([Average, Sum]),
    postscale=st.sampled_from([1.0, 1 / 3]),
    answer=st.sampled_from(["the same", "the same", "another operation", "a shorter one", "the same and more", "none"]),
    shown=st.integers(0, 70_000),
    in_place=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_a_swap_sends_takes_the_answer_and_adds_up(count, dtype, op, postscale, answer, shown, in_place, seed):
    how = reduction(dtype.name, op, 2, 1.0, postscale)
    rng = np.random.default_rng(seed)
    own, other = (rng.normal(size=count).astype(dtype) for _ in range(2))
    replies = {
        "the same": [HEADER + other.tobytes()],
        "another operation": [HEADER[:4] + bytes([8, 0, 0, 0]) + other.tobytes()],
        "a shorter one": [HEADER[:7]],
        "the same and more": [HEADER + other.tobytes(), b"more"],
        "none": [],
    }[answer]
    data = b"".join(map(framed, replies))
    mine, result = own.copy(), np.full(count, 7, dtype)
    if in_place:
        result = mine
    with Peer() as peer:
        peer.socket.sendall(data[:shown])
        outcome = peer.prepare(HEADER, count, dtype, how.factor)(mine, result, LOOKS)
        assert peer.receive(12 + own.nbytes) == framed(HEADER + own.tobytes())
        peer.socket.sendall(data[shown:])
        if answer == "the same" and shown >= len(data):
            assert outcome == ANSWERED
            expected = np.empty(count, dtype)
            how.combine([own, other], [expected])
            assert result.tobytes() == expected.tobytes()
            replies = []
        else:
            assert outcome == SENT
            assert result.tobytes() == (own if in_place else np.full(count, 7, dtype)).tobytes()
        peer.end.it.send(b"next")
        assert peer.receive(8) == framed(b"next")
        turn_until(lambda: len(peer.end.messages) == len(replies), peer.end)
        assert peer.end.messages == replies


@pytest.mark.parametrize("reset", [False, True])
def test_what_came_before_the_peer_was_gone_is_handled_first(reset):
    array = np.ones(3)
    with Peer() as peer:
        peer.socket.sendall(framed(b"last words"))
        if reset:
            peer.end.it.send(b"unread")
        peer.socket.close()
        assert peer.prepare(HEADER, 3, array.dtype, 1.0)(array, array, LOOKS) == SENT
        turn_until(lambda: peer.end.reasons != [], peer.end)
        assert peer.before_the_end == [b"last words"]
        assert peer.prepare(HEADER, 3, array.dtype, 1.0)(array, array, LOOKS) == NO_ROOM
