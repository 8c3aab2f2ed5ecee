"""A connection between a launcher and a host that joins, or between two launchers: messages over TCP or TLS."""

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
    """One connection. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connection, which both sides have authenticated. It does not block from here on."""
        connection.setblocking(False)
        self._socket = connection
        self.peer = ""
        """The address of the other side in digits. Empty if it was gone already."""
        with suppress(OSError):
            self.peer = str((connection.getpeername() or [""])[0])
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

    # --- sending

    @property
    def pending(self) -> int:
        """The number of bytes that the kernel has not taken yet. `flush` sends them when the descriptor is writable."""
        return len(self._outgoing)

    def put(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Append a message to what is pending."""
        self._outgoing += encode(kind, payload)

    def flush(self) -> None:
        """Send what the kernel takes now. Raises OSError when the connection is broken."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing = bytearray()  # a new one, since the traceback may hold a view of the other
            raise

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Send a message, and wait until the kernel has taken it. Raises OSError when the connection is broken."""
        self.put(kind, payload)
        self.flush()
        while self._outgoing:
            self._poll(select.POLLOUT, None)
            self.flush()

    # --- receiving

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something to receive, for `timeout` seconds at most. Return whether there is."""
        return bool(self._received) or self._poll(select.POLLIN, timeout)

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
        """Wait for the next message. Messages that arrive together with it are left for the next call.

        Args:
            timeout: in seconds. None = no limit.

        Raises:
            OSError: the connection is broken, or the other side has closed it.
            TimeoutError: nothing came in time.
            LaunchError: what arrived is not a message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._received:
            if not self.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimeoutError("timed out")
            self._received.extend(self.receive())
        return self._received.popleft()

    # --- the end

    def shutdown(self) -> None:
        """End the connection in both directions, which wakes all threads that wait for it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self, timeout: float = 0.0) -> None:
        """Close the connection. Wait for the kernel to take what is pending, `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        with suppress(OSError):
            while self._outgoing and (left := deadline - time.monotonic()) > 0:
                self._poll(select.POLLOUT, left)
                self.flush()
        self._socket.close()

    def _poll(self, event: int, timeout: float | None) -> bool:
        poll = select.poll()  # unlike select, without a limit on the descriptor's number
        poll.register(self._socket, event)
        return bool(poll.poll(None if timeout is None else timeout * 1000))
