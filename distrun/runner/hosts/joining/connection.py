"""A connection between two launchers, or between a launcher and a host that joins: messages, without blocking."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from contextlib import suppress

from distrun.host.connections.tcp_options import set_tcp_options
from distrun.runner.hosts.joining.messages import MessageDecoder, MessageKind, encode

_RECEIVE_SIZE = 1 << 20  # bytes


class Connection:
    """One connection, for one thread. Only `receive_one` and `close` wait."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a TCP connection, which both sides have authenticated."""
        connection.setblocking(False)
        self._socket = connection
        self.peer = ""
        """The address of the other side in digits. Empty if it was gone already."""
        with suppress(OSError):
            self.peer = str(connection.getpeername()[0])
        self._decoder = MessageDecoder()
        self._received: deque[tuple[MessageKind, bytes]] = deque()
        self._outgoing = bytearray()

    def set_keepalive(self, keepalive: float, may_be_unread: bool = False) -> None:
        """Let the kernel report a dead host after `keepalive` seconds, 0 = never. See `set_tcp_options`."""
        with suppress(OSError):  # it is gone, which the next receive reports
            set_tcp_options(self._socket, keepalive, may_be_unread)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    @property
    def pending(self) -> int:
        """The number of bytes that the kernel has not taken yet. `flush` sends them when the descriptor is writable."""
        return len(self._outgoing)

    def put(self, kind: MessageKind, payload: bytes) -> None:
        """Append a message to what is pending."""
        self._outgoing += encode(kind, payload)

    def flush(self) -> None:
        """Send what the kernel takes now. Raises OSError when the connection is broken."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass

    def receive(self) -> list[tuple[MessageKind, bytes]]:
        """Return the messages that have arrived completely, perhaps none.

        Raises:
            OSError: the connection is broken, or the other side has closed it.
            LaunchError: what arrived is not a message.
        """
        received = list(self._received)
        self._received.clear()
        try:
            data = self._socket.recv(_RECEIVE_SIZE)
        except BlockingIOError:  # nothing, or the first part of a TLS record
            return received
        if not data:
            if received:  # the next call raises
                return received
            raise ConnectionResetError("it closed the connection")
        return [*received, *self._decoder.feed(data)]

    def receive_one(self, timeout: float | None = None) -> tuple[MessageKind, bytes]:
        """Wait for the next message. Those that arrive together with it are left for the next call.

        Args:
            timeout: in seconds. None = no limit.

        Raises:
            OSError: the connection is broken, or the other side has closed it.
            TimeoutError: nothing came in time.
            LaunchError: what arrived is not a message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._received:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left is None else left * 1000):
                raise TimeoutError("timed out")
            self._received.extend(self.receive())
        return self._received.popleft()

    def close(self, timeout: float = 0.0) -> None:
        """Close the connection. Wait for the kernel to take what is pending, `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        with suppress(OSError):
            while self._outgoing and (left := deadline - time.monotonic()) > 0:
                poll.poll(left * 1000)
                self.flush()
        self._socket.close()
