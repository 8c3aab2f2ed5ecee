"""The messages between a worker and a server, after the handshake of all connections of a job.

Every message is a header of fixed size, and as many bytes as it says: JSON where something is agreed on, and otherwise
arrays in the order of bytes of the machine, read straight into the memory where they belong. A worker asks, and the
server answers, one after the other, so that a request without an answer is all that a broken connection can lose.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import MismatchError

_HEADER = struct.Struct("<B7xqqQ")
_PIECE = 1 << 20  # bytes given to the socket at a time
MOST_TEXT = 1 << 26
"""Bytes of the longest JSON text that is read."""
WORKER, OPTIMIZER, MEANT = "worker", "optimizer", "server"
"""The members of a worker's introduction: its rank, the number of the optimizer, and the server that it means."""
CALLS = -1
"""The number that stands there for the queue of calls."""


class Kind(IntEnum):
    """The meaning of a message. The first group goes to the server, the second are its answers."""

    OPEN = 1
    """The layout, JSON, which must be the same for all workers; number: the steps whose gradients this worker knows to
    have been applied; needed: 1 if it has opened the share before. Answer: OPENED."""
    SET = 2
    """New values of the share; number: 1 if the state of the optimizer and the numbers of steps follow. Answer: DONE,
    when they are there."""
    PUSH = 3
    """The gradients of a step; number: the step. Answer: as to PULL."""
    PULL = 4
    """Answer: VALUES, the dense values, when the slowest worker has reached the clock `needed`."""
    ROWS = 5
    """Indices of rows, int64; number: the table. Answer: VALUES, those of these rows."""
    GET = 6
    """Answer: VALUES, all values, the state of the optimizer and the numbers of steps."""
    LEAVE = 7
    """The worker pushes nothing more. Answer: DONE."""

    SCHEDULE = 8
    """A call for any worker; number: the call. Answer: DONE."""
    NEXT_CALL = 9
    """Answer: CALL, when there is one, or DONE: there will be no more."""
    REPORT = 10
    """The result of a call; number: the call. Answer: DONE."""
    NEXT_RESULT = 11
    """Answer: RESULT, when there is one."""
    END = 12
    """No more calls will be scheduled. Answer: DONE."""

    OPENED = 16
    """Number: the clock of this worker."""
    DONE = 17
    VALUES = 18
    """Arrays; number: the version."""
    ERROR = 19
    """A sentence."""
    CALL = 20
    RESULT = 21


@dataclass(frozen=True)
class Header:
    """The header of a message."""

    kind: int
    number: int
    needed: int
    """The clock that the slowest worker must have reached before the answer."""
    length: int
    """The bytes that follow."""


def send(connection: socket.socket, kind: Kind, number: int = 0, needed: int = 0, parts: Sequence[Any] = ()) -> None:
    """Send a message.

    Args:
        connection: blocks.
        kind, number, needed: its header.
        parts: bytes and contiguous arrays that follow.
    """
    views = [view for view in map(_bytes_of, parts) if len(view)]
    connection.sendall(_HEADER.pack(kind, number, needed, sum(map(len, views))))
    for view in views:
        for start in range(0, len(view), _PIECE):
            connection.sendall(view[start : start + _PIECE])


def receive_header(connection: socket.socket) -> Header:
    """Receive the header of the next message.

    Raises:
        ConnectionError: the other side has closed the connection.
    """
    memory = bytearray(_HEADER.size)
    receive_into(connection, memory)
    return Header(*_HEADER.unpack(memory))


def receive_into(connection: socket.socket, target: Any) -> None:
    """Receive as many bytes as a contiguous array has, or a bytearray.

    Raises:
        ConnectionError: the other side has closed the connection.
    """
    rest = _bytes_of(target)
    while rest:
        count = connection.recv_into(rest[:_PIECE])
        if not count:
            raise ConnectionResetError("it closed the connection")
        rest = rest[count:]


def receive_text(connection: socket.socket, length: int) -> bytes:
    """Receive a text of so many bytes.

    Raises:
        MismatchError: it is longer than any that is sent.
    """
    if length > MOST_TEXT:
        raise MismatchError(f"a message of {length} bytes is longer than {MOST_TEXT}")
    memory = bytearray(length)
    receive_into(connection, memory)
    return bytes(memory)


def expect(header: Header, length: int) -> None:
    """Check that a message has as many bytes as it must.

    Raises:
        MismatchError: it has others.
    """
    if header.length != length:
        raise MismatchError(f"a message has {header.length} bytes instead of {length}: is this the same distrun?")


def is_connected(connection: socket.socket) -> bool:
    """Return whether the other end of a connection is there."""
    if connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return not poll.poll(0)


def _bytes_of(part: Any) -> memoryview:
    if isinstance(part, np.ndarray):
        flat: NDArray[Any] = part.reshape(-1)
        return memoryview(flat.view(np.uint8).data) if flat.size else memoryview(b"")
    return memoryview(part)
