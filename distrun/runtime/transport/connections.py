"""TCP connections with ranks on other hosts. They never block, and one epoll object waits for all of them.

There are two kinds. A `Channel` carries messages of any length (see `channel`). A `Stream` carries the bytes of arrays:
both ends know which array comes next, so only the bytes are sent, straight from one array into another. Data that does
not fit into the kernel's buffer waits here until a later `ConnectionSet.progress` sends it.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
from collections import deque
from collections.abc import Callable

from distrun.host.connections.tcp_info import TcpInfo

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_MAX_READS = 8  # reads of a stream before other connections get their turn

SILENT = "nothing was heard from its host any more"
"""The reason of a connection that timed out."""

OnClose = Callable[[str], None]
"""Called once, with the reason why a connection ended."""


class ConnectionSet:
    """All connections of this rank. `progress` does all work. Only one thread may call it at a time."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self.fd = self._epoll.fileno()
        """Readable when `progress` has something to do."""

    def progress(self) -> None:
        """Read what has arrived, and send what fits, without blocking."""
        for fd, mask in self._epoll.poll(0):
            connection = self._connections.get(fd)
            if connection is not None:
                connection.handle_events(mask)

    def add(self, connection: Connection) -> None:
        """Add a connection to those that are polled."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, connection.mask)

    def update(self, connection: Connection) -> None:
        """Poll `connection` for its new mask."""
        self._epoll.modify(connection.fd, connection.mask)

    def remove(self, connection: Connection) -> None:
        """Remove a connection before it is closed."""
        if self._connections.pop(connection.fd, None) is not None and not connection.is_detached:
            self._epoll.unregister(connection.fd)

    def detach(self, connection: Connection) -> None:
        """Stop polling a connection. It may still be read. May be called once."""
        self._epoll.unregister(connection.fd)
        connection.is_detached = True

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            self.remove(connection)
            connection.socket.close()
        self._epoll.close()

    def disown(self) -> None:
        """Close a forked child's copies, which would keep the connections open when the parent dies.

        The epoll object itself is shared with the parent, so nothing may be unregistered from it.
        """
        for connection in self._connections.values():
            os.close(connection.socket.detach())
        self._connections.clear()
        self._epoll.close()


class Connection:
    """One non-blocking TCP connection."""

    def __init__(self, connections: ConnectionSet, connection: socket.socket, on_close: OnClose) -> None:
        """`on_close` is called with the reason when the connection has ended."""
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.mask = READ
        self.is_closed = False
        self.is_detached = False
        """Whether it is no longer polled, because its other end is gone and only received data is left to read."""
        self._reason = ""
        # With encryption, decrypted data may wait in this process, where no poll reports it.
        self._reads_ahead = hasattr(connection, "reads_ahead")
        self._connections = connections
        self._on_close = on_close
        connections.add(self)

    def handle_events(self, mask: int) -> None:
        """Handle the events of a poll's `mask`."""
        try:
            if mask & WRITE:
                self._write()
            if mask & ~WRITE:
                self._read()
        except OSError as error:
            self._close(reason_of(error))

    def look(self) -> None:
        """Read what has arrived, even if no poll has reported it."""
        if not self.is_closed:
            self.handle_events(READ)

    def _write(self) -> None:
        """Send pending data."""
        raise NotImplementedError

    def _read(self) -> None:
        """Read what has arrived."""
        raise NotImplementedError

    def _want(self, mask: int) -> None:
        if mask != self.mask and not self.is_closed and not self.is_detached:
            self.mask = mask
            self._connections.update(self)

    def _close(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._reason = reason
            self._connections.remove(self)
            self.socket.close()
            self._notify_closed()

    def _notify_closed(self) -> None:
        """Call `on_close` with the reason."""
        self._on_close(self._reason)


class Transfer:
    """The progress of one array that is being sent or received."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left
        """The bytes that are still to be sent or received."""


class Stream(Connection):
    """The bytes of arrays, to and from one rank, in an order that both ends know."""

    def __init__(self, connections: ConnectionSet, connection: socket.socket, on_close: OnClose) -> None:
        self._unsent: deque[tuple[memoryview, Transfer]] = deque()
        self._awaited: deque[tuple[memoryview, Transfer]] = deque()
        super().__init__(connections, connection, on_close)

    @property
    def is_sending(self) -> bool:
        """Whether data passed to `send` is still pending."""
        return bool(self._unsent)

    @property
    def is_receiving(self) -> bool:
        """Whether data that was asked for has not arrived yet."""
        return bool(self._awaited)

    def send(self, data: memoryview) -> Transfer:
        """Send the bytes of `data`, which must not change until the transfer is complete."""
        transfer = Transfer(len(data))
        if not transfer.left:
            return transfer
        self._unsent.append((data, transfer))
        if self.is_closed:
            self._notify_closed()
        elif len(self._unsent) == 1:
            try:
                self._write()
            except OSError as error:
                self._close(reason_of(error))
        return transfer

    def receive(self, into: memoryview) -> Transfer:
        """Receive the next bytes in `into`, after the bytes for earlier calls."""
        transfer = Transfer(len(into))
        if not transfer.left:
            return transfer
        self._awaited.append((into, transfer))
        if self.is_closed:
            self._notify_closed()
        elif len(self._awaited) == 1:
            try:
                self._read()
            except OSError as error:
                self._close(reason_of(error))
        return transfer

    def info(self) -> TcpInfo | None:
        """Return the kernel's information about this connection, or None if it is closed."""
        try:
            return None if self.is_closed else TcpInfo.of(self.socket)
        except OSError:
            return None

    def give_up_if_silent(self, keepalive: float) -> None:
        """Close the connection if sent data has not been acknowledged for `keepalive` seconds."""
        info = self.info()
        if info is not None and info.is_dead(keepalive):
            self._close(SILENT)

    def _notify_closed(self) -> None:
        """Call `on_close` only if data is still to be sent or received: a rank may leave after it has done its part."""
        if self._unsent or self._awaited:
            super()._notify_closed()

    def _write(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                data, transfer = unsent[0]
                sent = self.socket.send(data)
                transfer.left -= sent
                if transfer.left:
                    unsent[0] = data[sent:], transfer
                else:
                    unsent.popleft()
        except BlockingIOError:
            self._want(self.mask | WRITE)
        else:
            self._want(self.mask & ~WRITE)

    def _read(self) -> None:
        awaited = self._awaited
        try:
            for _ in itertools.count() if self.is_detached or self._reads_ahead else range(_MAX_READS):
                if not awaited:
                    return
                into, transfer = awaited[0]
                count = self.socket.recv_into(into)
                if not count:
                    self._close("its connection was closed")
                    return
                transfer.left -= count
                if transfer.left:
                    awaited[0] = into[count:], transfer
                else:
                    awaited.popleft()
        except BlockingIOError:
            pass
        if awaited:
            self._want(self.mask | READ)

    def handle_events(self, mask: int) -> None:
        if self._awaited or not mask & ~WRITE:
            super().handle_events(mask)
            return
        # No data has been asked for yet. Either the peer is ahead of this rank, and its data stays in the kernel's
        # buffer until it is asked for, or the peer is gone.
        super().handle_events(mask & WRITE)
        try:
            if not self.socket.recv(1, socket.MSG_PEEK):
                self._close("its connection was closed")
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                self._connections.detach(self)  # a hang-up cannot be masked, and earlier data is still needed
            else:
                self._want(self.mask & ~READ)
        except BlockingIOError:
            pass
        except OSError as error:
            self._close(reason_of(error))


def reason_of(error: OSError) -> str:
    """Return a clause that tells users how a connection ended."""
    if isinstance(error, TimeoutError):
        return SILENT
    return f"its connection broke ({error.strerror or error})"
