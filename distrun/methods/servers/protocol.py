"""The messages between a worker and a server, after the handshake of connections in a job.

Every message is a header of fixed size, and a body whose length is in the header: JSON for the layout, otherwise arrays
in native byte order, received directly in their destination. A worker sends a request, the server answers it, and so
on. So a broken connection loses at most one request.
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
_PIECE = 1 << 20  # bytes passed to the socket at a time
MOST_TEXT = 1 << 26
"""Bytes of the longest text that is accepted."""
WORKER, OPTIMIZER, MEANT = "worker", "optimizer", "server"
"""The members of a worker's introduction: its rank, the number of the optimizer, and the number of the server."""
CALLS = -1
"""The number of the optimizer in an introduction that stands for the queue of calls."""


class Kind(IntEnum):
    """The kinds of messages. Those up to END are requests to the server, the others its answers."""

    OPEN = 1
    """The layout, JSON, which must be the same for all workers. Number: the steps whose gradients this worker knows to
    be applied. Needed: 1 if it has opened the share before. Answer: OPENED."""
    SET = 2
    """New values of the share. Number: 1 if the state of the optimizer and the numbers of steps follow. Answer: DONE,
    after they have been stored."""
    PUSH = 3
    """The gradients of a step. Number: the step. Answer: as for PULL."""
    PULL = 4
    """No body. Answer: VALUES, the dense values, once the slowest worker has reached the clock `needed`."""
    ROWS = 5
    """Indices of rows, int64. Number: the table. Answer: VALUES, the values of these rows."""
    GET = 6
    """No body. Answer: VALUES, all values, the state of the optimizer and the numbers of steps."""
    LEAVE = 7
    """The worker will push no more gradients. Answer: DONE."""

    SCHEDULE = 8
    """A call for any worker. Number: the number of the call. Answer: DONE."""
    NEXT_CALL = 9
    """Answer: CALL, as soon as there is one, or DONE if there will be no more."""
    REPORT = 10
    """The result of a call. Number: the number of the call. Answer: DONE."""
    NEXT_RESULT = 11
    """Answer: RESULT, as soon as there is one."""
    END = 12
    """No more calls will be scheduled. Answer: DONE."""

    OPENED = 16
    """Number: the clock of this worker."""
    DONE = 17
    VALUES = 18
    """Arrays. Number: the version."""
    ERROR = 19
    """A sentence, the reason why a request is refused."""
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
    """The number of bytes of the body."""


def send(connection: socket.socket, kind: Kind, number: int = 0, needed: int = 0, parts: Sequence[Any] = ()) -> None:
    """Send a message over a blocking socket. `parts`, the body, are bytes and contiguous arrays."""
    views = [view for view in map(_bytes_of, parts) if len(view)]
    connection.sendall(_HEADER.pack(kind, number, needed, sum(map(len, views))))
    for view in views:
        for start in range(0, len(view), _PIECE):
            connection.sendall(view[start : start + _PIECE])


def receive_header(connection: socket.socket) -> Header:
    """Return the header of the next message.

    Raises:
        ConnectionError: the other side has closed the connection.
    """
    memory = bytearray(_HEADER.size)
    receive_into(connection, memory)
    return Header(*_HEADER.unpack(memory))


def receive_into(connection: socket.socket, target: Any) -> None:
    """Fill `target`, a contiguous array or a bytearray, with received bytes.

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
    """Return a received text of `length` bytes.

    Raises:
        MismatchError: the length is more than `MOST_TEXT`.
    """
    if length > MOST_TEXT:
        raise MismatchError(f"a message of {length} bytes is longer than {MOST_TEXT}")
    memory = bytearray(length)
    receive_into(connection, memory)
    return bytes(memory)


def expect(header: Header, length: int) -> None:
    """Check that the body of a message has `length` bytes.

    Raises:
        MismatchError: it has another length.
    """
    if header.length != length:
        raise MismatchError(f"a message has {header.length} bytes instead of {length}: is this the same distrun?")


def is_connected(connection: socket.socket) -> bool:
    """Return whether the other end of `connection` has not closed it."""
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
