"""Both sides of a conversation prove that they know the key, and believe nobody who does not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from distrun.runtime.rendezvous.authentication import (
    SIZE,
    Conversation,
    Script,
    StrangerError,
    client_side,
    converse,
    server_side,
)

KEY = bytes(range(32))


class Side(threading.Thread):
    """Plays a script on its end of a connection, and hangs up."""

    def __init__(self, connection: socket.socket, script: Script[Any]) -> None:
        super().__init__()
        self._play: Callable[[], Any] = lambda: converse(connection, script)
        self._connection = connection
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._connection:
                self._play()
        except Exception as error:
            self.error = error

    def end(self) -> Exception | None:
        self.join(10.0)
        assert not self.is_alive()
        return self.error


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=["stream", "messages"])
def ends(request) -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair(socket.AF_UNIX, request.param)
    for end in pair:
        end.settimeout(10.0)
    with pair[0], pair[1]:
        yield pair


def test_who_knows_the_key_is_believed(ends):
    host, guest = Side(ends[0], server_side(KEY, b"tea")), Side(ends[1], client_side(KEY, b"tea"))
    assert (host.end(), guest.end()) == (None, None)


@pytest.mark.parametrize(
    ("key", "context"), [(KEY[::-1], b"tea"), (b"", b"tea"), (KEY, b"coffee")], ids=["another key", "no key", "context"]
)
def test_who_does_not_is_not_and_both_sides_learn_it(ends, key, context):
    host, guest = Side(ends[0], server_side(KEY, b"tea")), Side(ends[1], client_side(key, context))
    assert isinstance(host.end(), StrangerError)
    assert isinstance(guest.end(), StrangerError)


def test_a_host_that_does_not_know_the_key_is_not_believed(ends):
    def impostor() -> Script[None]:
        yield bytes(SIZE)
        yield 2 * SIZE
        yield bytes(SIZE)

    host, guest = Side(ends[0], impostor()), Side(ends[1], client_side(KEY, b""))
    assert host.end() is None
    assert isinstance(guest.end(), StrangerError)


def test_a_proof_sent_back_to_its_maker_proves_nothing(ends):
    def mirror() -> Script[None]:
        yield bytes(SIZE)
        answer = yield 2 * SIZE
        yield answer[:SIZE]

    host, guest = Side(ends[0], mirror()), Side(ends[1], client_side(KEY, b""))
    assert host.end() is None
    assert isinstance(guest.end(), StrangerError)


def test_what_was_overheard_serves_nobody():
    heard = [record(KEY) for _ in range(2)]
    assert heard[0] != heard[1]
    script = server_side(KEY, b"")
    next(script)
    script.send(b"")
    with pytest.raises(StrangerError):
        script.send(heard[0][1])


def record(key: bytes) -> list[bytes]:
    """Everything that travels in one conversation."""
    host, guest = server_side(key, b""), client_side(key, b"")
    assert next(guest) == SIZE
    challenge = next(host)
    assert host.send(b"") == 2 * SIZE
    answer = guest.send(challenge)
    assert guest.send(b"") == SIZE
    proof = host.send(answer)
    with pytest.raises(StopIteration):
        guest.send(proof)
    with pytest.raises(StopIteration):
        host.send(b"")
    return [challenge, answer, proof]


def test_somebody_who_hangs_up_before_a_proof_is_no_stranger(ends):
    guest = Side(ends[1], client_side(KEY, b""))
    ends[0].close()
    error = guest.end()
    assert isinstance(error, ConnectionError)


@given(st.lists(st.integers(1, 2 * SIZE), min_size=1, max_size=8))
def test_a_conversation_takes_bytes_as_they_come_and_not_one_too_many(sizes):
    host_end, guest_end = socket.socketpair()
    with host_end, guest_end:
        host_end.setblocking(False)
        guest_end.settimeout(10.0)
        host = Conversation(host_end, server_side(KEY, b""))
        assert not host.advance()
        assert not host.wants_to_send
        guest = client_side(KEY, b"")
        next(guest)
        answer = guest.send(guest_end.recv(SIZE)) + b"more"
        assert isinstance(answer, bytes)
        done, turn = False, 0
        while not done:
            assert answer
            part = sizes[turn % len(sizes)]
            guest_end.sendall(answer[:part])
            answer, turn = answer[part:], turn + 1
            done = host.advance()
        guest_end.sendall(answer)
        guest.send(b"")
        with pytest.raises(StopIteration):
            guest.send(guest_end.recv(SIZE))
        assert host_end.recv(100) == b"more"


def test_a_conversation_sends_what_does_not_fit_when_it_does():
    def speech() -> Script[int]:
        yield bytes(1 << 20)
        yield b"end"
        return 7

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        conversation = Conversation(ours, speech())
        received = b""
        while not conversation.advance():
            assert conversation.wants_to_send
            received += theirs.recv(1 << 16)
        ours.close()
        while part := theirs.recv(1 << 16):
            received += part
    assert conversation.result == 7
    assert received == bytes(1 << 20) + b"end"


def test_a_conversation_ends_with_the_connection():
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        conversation = Conversation(ours, server_side(KEY, b""))
        assert not conversation.advance()
        theirs.close()
        with pytest.raises(ConnectionError):
            conversation.advance()
