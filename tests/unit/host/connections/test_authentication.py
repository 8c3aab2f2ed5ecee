"""Both sides of a handshake prove that they know the key, and believe nobody who does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, strategies as st
from in_process.calls import started

from distrun.host.connections.authentication import (
    SIZE,
    AuthenticationError,
    Handshake,
    NonblockingHandshake,
    client_side,
    run_handshake,
    server_side,
)

KEY = bytes(range(32))


def side(connection: socket.socket, handshake: Handshake[Any]) -> Future[None]:
    """Play a handshake on this end of a connection, and hang up."""

    def play() -> None:
        with connection:
            run_handshake(connection, handshake)

    return started(play)


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=["stream", "messages"])
def ends(request) -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair(socket.AF_UNIX, request.param)
    for end in pair:
        end.settimeout(60.0)
    with pair[0], pair[1]:
        yield pair


def test_a_side_that_knows_the_key_is_believed(ends):
    server, client = side(ends[0], server_side(KEY, b"tea")), side(ends[1], client_side(KEY, b"tea"))
    assert (server.exception(60.0), client.exception(60.0)) == (None, None)


@pytest.mark.parametrize(
    ("key", "context"), [(KEY[::-1], b"tea"), (b"", b"tea"), (KEY, b"coffee")], ids=["another key", "no key", "context"]
)
def test_a_side_that_does_not_is_not_and_both_learn_it(ends, key, context):
    server, client = side(ends[0], server_side(KEY, b"tea")), side(ends[1], client_side(key, context))
    assert isinstance(server.exception(60.0), AuthenticationError)
    assert isinstance(client.exception(60.0), AuthenticationError)


@pytest.mark.parametrize("is_mirror", [False, True])
def test_a_server_that_makes_a_proof_up_or_sends_it_back_to_its_maker_is_not_believed(ends, is_mirror):
    def impostor() -> Handshake[None]:
        yield bytes(SIZE)
        answer = yield 2 * SIZE
        yield answer[:SIZE] if is_mirror else bytes(SIZE)

    server, client = side(ends[0], impostor()), side(ends[1], client_side(KEY, b""))
    assert server.exception(60.0) is None
    assert isinstance(client.exception(60.0), AuthenticationError)


def test_what_was_overheard_serves_nobody():
    heard = [record(KEY) for _ in range(2)]
    assert heard[0] != heard[1]
    handshake = server_side(KEY, b"")
    next(handshake)
    handshake.send(b"")
    with pytest.raises(AuthenticationError):
        handshake.send(heard[0][1])


def record(key: bytes) -> list[bytes]:
    """Everything that travels in one handshake."""
    server, client = server_side(key, b""), client_side(key, b"")
    assert next(client) == SIZE
    challenge = next(server)
    assert server.send(b"") == 2 * SIZE
    answer = client.send(challenge)
    assert client.send(b"") == SIZE
    proof = server.send(answer)
    with pytest.raises(StopIteration):
        client.send(proof)
    with pytest.raises(StopIteration):
        server.send(b"")
    return [challenge, answer, proof]


def test_a_connection_that_ends_before_a_proof_is_no_failed_authentication(ends):
    client = side(ends[1], client_side(KEY, b""))
    ends[0].close()
    assert isinstance(client.exception(60.0), ConnectionError)


@given(st.lists(st.integers(1, 2 * SIZE), min_size=1, max_size=8))
def test_a_handshake_takes_bytes_as_they_come_and_not_one_too_many(sizes):
    server_end, client_end = socket.socketpair()
    with server_end, client_end:
        server_end.setblocking(False)
        client_end.settimeout(60.0)
        server = NonblockingHandshake(server_end, server_side(KEY, b""))
        assert not server.advance()
        assert not server.wants_to_send
        client = client_side(KEY, b"")
        next(client)
        answer = client.send(client_end.recv(SIZE)) + b"more"
        assert isinstance(answer, bytes)
        done, turn = False, 0
        while not done:
            assert answer
            part = sizes[turn % len(sizes)]
            client_end.sendall(answer[:part])
            answer, turn = answer[part:], turn + 1
            done = server.advance()
        client_end.sendall(answer)
        client.send(b"")
        with pytest.raises(StopIteration):
            client.send(client_end.recv(SIZE))
        assert server_end.recv(100) == b"more"


def test_a_handshake_sends_what_does_not_fit_when_it_does():
    def speech() -> Handshake[int]:
        yield bytes(1 << 20)
        yield b"end"
        return 7

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        handshake = NonblockingHandshake(ours, speech())
        received = b""
        while not handshake.advance():
            assert handshake.wants_to_send
            received += theirs.recv(1 << 16)
        ours.close()
        while part := theirs.recv(1 << 16):
            received += part
    assert handshake.result == 7
    assert received == bytes(1 << 20) + b"end"


def test_a_handshake_ends_with_the_connection():
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        handshake = NonblockingHandshake(ours, server_side(KEY, b""))
        assert not handshake.advance()
        theirs.close()
        with pytest.raises(ConnectionError):
            handshake.advance()
