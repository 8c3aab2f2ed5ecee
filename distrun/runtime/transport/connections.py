"""TCP connections with ranks on other hosts, none of which ever blocks, and all of which are waited for as one.

Two kinds of traffic travel on connections of their own. A `Channel` carries messages of any length. A `Stream` carries
the bytes of arrays: both ends know what comes, so nothing but the bytes is sent, straight out of one array and into
another. What does not fit into the kernel's buffer waits here and leaves with a later `ConnectionSet.progress`.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable

from distrun.host.connections.tcp_info import TcpInfo
from distrun.runtime.transport.shared_memory.mailbox import LARGEST

_LENGTH = struct.Struct("<I")
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_CHUNK = 96 << 10
"""Bytes of messages taken at a time. From 128 KiB on, the C library maps new memory for each read, which takes longer
than the read."""
_MAX_READS = 8  # of a stream before other connections are read
LARGEST_FRAME = LARGEST + (16 << 10)
"""Bytes of the largest message of a channel: leaders of hosts put envelopes around those that they pass on."""

SILENT = "nothing was heard from its host any more"
"""Why a connection with a host that is gone has ended."""

OnClose = Callable[[str], None]
"""Called once, with the reason why a connection ended."""


class ConnectionSet:
    """All connections of this rank. All work is done in `progress`, which only one thread may call at a time."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self.fd = self._epoll.fileno()
        """Readable when there is something to do."""

    def progress(self) -> None:
        """Read what has come, send what fits; never blocks."""
        for fd, mask in self._epoll.poll(0):
            connection = self._connections.get(fd)
            if connection is not None:
                connection.handle_events(mask)

    def add(self, connection: Connection) -> None:
        """Poll a connection from now on."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, connection.mask)

    def update(self, connection: Connection) -> None:
        """Poll for a connection's new mask."""
        self._epoll.modify(connection.fd, connection.mask)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is to be closed."""
        if self._connections.pop(connection.fd, None) is not None and not connection.is_detached:
            self._epoll.unregister(connection.fd)

    def detach(self, connection: Connection) -> None:
        """Poll a connection no longer. May be called once."""
        self._epoll.unregister(connection.fd)

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
    """One TCP connection, in whichever direction it was made."""

    def __init__(self, connections: ConnectionSet, connection: socket.socket, on_close: OnClose) -> None:
        """`on_close` is told why nothing will come any more."""
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.mask = _READ
        self.is_closed = False
        self.is_detached = False
        """Whether it is polled no longer, because its other end is gone and only what has come is left to read."""
        self._reason = ""
        # Where connections are encrypted, what is decrypted waits in the process, and no poll tells of it.
        self._reads_ahead = hasattr(connection, "reads_ahead")
        self._connections = connections
        self._on_close = on_close
        connections.add(self)

    def handle_events(self, mask: int) -> None:
        """Handle events."""
        try:
            if mask & _WRITE:
                self._write()
            if mask & ~_WRITE:
                self._read()
        except OSError as error:
            self._close(reason_of(error))

    def look(self) -> None:
        """Read what has come, whether the poll tells of it or not."""
        if not self.is_closed:
            self.handle_events(_READ)

    def _write(self) -> None:
        """Send what has waited."""
        raise NotImplementedError

    def _read(self) -> None:
        """Read what has come."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Poll this connection no longer; it may still be read from."""
        self._connections.detach(self)
        self.is_detached = True

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
        """Tell why it is closed."""
        self._on_close(self._reason)


class Channel(Connection):
    """Messages to and from one rank: each is its length in four bytes, then its bytes."""

    def __init__(
        self,
        connections: ConnectionSet,
        connection: socket.socket,
        on_message: Callable[[bytes], None],
        on_close: OnClose,
    ) -> None:
        """`on_message` is given each message that comes."""
        self._on_message = on_message
        self._unsent = bytearray()
        self._received = b""
        super().__init__(connections, connection, on_close)

    def send(self, message: bytes) -> None:
        """Send a message; never blocks, and never fails: see `OnClose`."""
        assert len(message) <= LARGEST_FRAME, len(message)
        if self.is_closed:
            return
        frame = _LENGTH.pack(len(message)) + message
        if self._unsent:
            self._unsent += frame
            return
        try:
            sent = self.socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the other side is gone; reading tells why, perhaps with its last message
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._want(_READ | _WRITE)

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            self._want(_READ | _WRITE)
            return
        except OSError:
            self._unsent.clear()  # as in `send`
        self._want(_READ)

    @property
    def is_sending(self) -> bool:
        """Whether messages wait here because the kernel's buffer is full."""
        return bool(self._unsent) and not self.is_closed

    def shut_down(self) -> None:
        """End a connection whose other side is known to be gone: what it has sent can still be read, then comes the
        end."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # its end has been noticed already

    def _read(self) -> None:
        while self._read_some() and self._reads_ahead and not self.is_closed:
            pass

    def _read_some(self) -> bool:
        """Take what one read gives; whether there was anything."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close("its connection was closed")
            return False
        if self._received:
            data = self._received + data
        start, end = 0, len(data)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > LARGEST_FRAME:
                self._close(f"it sent a message of {length} bytes, and none is larger than {LARGEST_FRAME}")
                return False
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            self._on_message(data[start : start + length])
            start += length
        self._received = data[start:]
        return True


class Transfer:
    """The bytes that are still to come into one array, or to leave it."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left
        """Bytes."""


class Stream(Connection):
    """The bytes of arrays, to and from one rank, in an order both ends know."""

    def __init__(self, connections: ConnectionSet, connection: socket.socket, on_close: OnClose) -> None:
        self._unsent: deque[tuple[memoryview, Transfer]] = deque()
        self._awaited: deque[tuple[memoryview, Transfer]] = deque()
        super().__init__(connections, connection, on_close)

    @property
    def is_sending(self) -> bool:
        """Whether arrays that were given to `send` are still needed."""
        return bool(self._unsent)

    @property
    def is_receiving(self) -> bool:
        """Whether something that was asked for has not come yet."""
        return bool(self._awaited)

    def send(self, data: memoryview) -> Transfer:
        """Send bytes. Their memory must not change before all have left."""
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
        """Receive bytes, after those that earlier calls asked for."""
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
        """Return what the kernel knows of it; None when it is closed."""
        try:
            return None if self.is_closed else TcpInfo.of(self.socket)
        except OSError:
            return None

    def give_up_if_silent(self, keepalive: float) -> None:
        """Close it if what was sent has been unanswered for so many seconds."""
        info = self.info()
        if info is not None and info.is_dead(keepalive):
            self._close(SILENT)

    def _notify_closed(self) -> None:
        """Tell why it is closed if anything is still to be sent or received: a rank that has left after its part is not
        missed."""
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
            self._want(self.mask | _WRITE)
        else:
            self._want(self.mask & ~_WRITE)

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
            self._want(self.mask | _READ)

    def handle_events(self, mask: int) -> None:
        if self._awaited or not mask & ~_WRITE:
            super().handle_events(mask)
            return
        # Nothing has been asked for yet. Either the peer is ahead of us, and what it sends stays in the kernel's buffer
        # until it is asked for, or it is gone.
        super().handle_events(mask & _WRITE)
        try:
            if not self.socket.recv(1, socket.MSG_PEEK):
                self._close("its connection was closed")
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                self._detach()  # a hang-up cannot be masked; what has come before it is still wanted
            else:
                self._want(self.mask & ~_READ)
        except BlockingIOError:
            pass
        except OSError as error:
            self._close(reason_of(error))


def reason_of(error: OSError) -> str:
    """Return how a connection ended, for people."""
    if isinstance(error, TimeoutError):
        return SILENT
    return f"its connection broke ({error.strerror or error})"
