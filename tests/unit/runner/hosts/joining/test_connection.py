"""A connection hands out whole messages, one by one or all that have arrived, and reports the end once."""

import socket

import pytest

from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.messages import MessageKind, encode

ANSWER, BEGIN = (MessageKind.ACCEPTED, b"{}"), (MessageKind.BEGIN, b"x" * 1000)
DEADLINE = 60.0  # seconds


@pytest.fixture
def ends():
    """A connection and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    connection = Connection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def test_messages_that_arrive_with_the_one_waited_for_are_left_for_later(ends):
    connection, theirs = ends
    theirs.sendall(encode(*ANSWER) + encode(*BEGIN) + encode(*BEGIN)[:100])
    assert connection.receive_one(DEADLINE) == ANSWER
    assert connection.receive() == [BEGIN]
    assert connection.receive() == []
    theirs.sendall(encode(*BEGIN)[100:])
    assert connection.receive_one(DEADLINE) == BEGIN


def test_messages_that_arrive_before_the_end_are_not_lost(ends):
    connection, theirs = ends
    theirs.sendall(encode(*ANSWER) + encode(*BEGIN))
    theirs.shutdown(socket.SHUT_WR)
    assert connection.receive_one(DEADLINE) == ANSWER
    assert connection.receive() == [BEGIN]
    with pytest.raises(ConnectionResetError):
        connection.receive()


def test_a_wait_has_an_end(ends):
    with pytest.raises(TimeoutError):
        ends[0].receive_one(0.0)


def test_what_the_other_side_does_not_take_is_pending(ends):
    connection, theirs = ends
    connection.put(MessageKind.EVENT, bytes(8 << 20))
    connection.flush()
    assert connection.pending
    while connection.pending:
        theirs.recv(1 << 20)
        connection.flush()
