"""The wire: TCP connections to ranks on other hosts, none of which ever blocks, and all of which are waited for as one.

Two kinds of traffic travel on connections of their own. A `Channel` carries messages of any length. A `Stream` carries the
bytes of arrays: both ends know what comes, so nothing but the bytes is sent, straight out of one array and into another.
What does not fit into the kernel's buffer waits here and leaves with a later `Wire.progress`.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable

from distrun.runtime.shared_memory.mailbox import LARGEST

_LENGTH = struct.Struct("<I")
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_CHUNK = 1 << 18  # bytes of messages taken at a time
_TURNS = 8  # reads of a stream before others have their turn

Lost = Callable[[str], None]
"""Told, once, how a connection ended."""


class ConnectionSet:
    """All connections of this rank. Everything is done by whoever calls `progress`, which only one thread may do at a time."""

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
                connection.turn(mask)

    def add(self, connection: Connection) -> None:
        """Look after a connection from now on."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, connection.mask)

    def update(self, connection: Connection) -> None:
        """A connection's mask has changed."""
        self._epoll.modify(connection.fd, connection.mask)

    def remove(self, connection: Connection) -> None:
        """Let go of a connection that is to be closed."""
        if self._connections.pop(connection.fd, None) is not None and not connection.is_detached:
            self._epoll.unregister(connection.fd)

    def detach(self, connection: Connection) -> None:
        """Give a connection no more turns; once."""
        self._epoll.unregister(connection.fd)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            self.remove(connection)
            connection.socket.close()
        self._epoll.close()

    def disown(self) -> None:
        """In a forked child: let go of our copies, which would keep the connections open when the parent dies.

        The epoll object itself is shared with the parent, so nothing may be unregistered from it.
        """
        for connection in self._connections.values():
            os.close(connection.socket.detach())
        self._connections.clear()
        self._epoll.close()


class Connection:
    """One TCP connection, in whichever direction it was made."""

    def __init__(self, wire: ConnectionSet, connection: socket.socket, lost: Lost) -> None:
        """`lost` is told why nothing will come any more."""
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.mask = _READ
        self.is_lost = False
        self.is_detached = False
        """Whether it has no turns any more, because its other end is gone, and only what has come is left to read."""
        self._how = ""
        self._wire = wire
        self._tell = lost
        wire.add(self)

    def turn(self, mask: int) -> None:
        """Do what can be done now."""
        try:
            if mask & _WRITE:
                self._write()
            if mask & ~_WRITE:
                self._read()
        except OSError as error:
            self._lose(_reason(error))

    def _write(self) -> None:
        """Send what has waited."""
        raise NotImplementedError

    def _read(self) -> None:
        """Take what has come."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Do not wait for this connection any more; it may still be read from."""
        self._wire.detach(self)
        self.is_detached = True

    def _want(self, mask: int) -> None:
        if mask != self.mask and not self.is_lost and not self.is_detached:
            self.mask = mask
            self._wire.update(self)

    def _lose(self, how: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._how = how
            self._wire.remove(self)
            self.socket.close()
            self._mourn()

    def _mourn(self) -> None:
        """Tell that it is lost."""
        self._tell(self._how)


class Channel(Connection):
    """Messages to and from one rank: each is its length in four bytes, then its bytes."""

    def __init__(
        self, wire: ConnectionSet, connection: socket.socket, hear: Callable[[bytes], None], lost: Lost
    ) -> None:
        """`hear` is given each message that comes."""
        self._hear = hear
        self._unsent = bytearray()
        self._received = b""
        super().__init__(wire, connection, lost)

    def send(self, message: bytes) -> None:
        """Send a message of at most `LARGEST` bytes; never blocks, and never fails: see `lost`."""
        assert len(message) <= LARGEST, len(message)
        if self.is_lost:
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
            return  # nobody listens any more; reading tells why, perhaps with the other side's last words
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
        """Whether messages wait for the other side to take others."""
        return bool(self._unsent) and not self.is_lost

    def hang_up(self) -> None:
        """The other side is known to be gone: what it has sent can still be read, then comes the end."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # so it has been noticed

    def _read(self) -> None:
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._lose("its connection was closed")
            return
        if self._received:
            data = self._received + data
        start, end = 0, len(data)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, start)
            if length > LARGEST:
                self._lose(f"it sent a message of {length} bytes, and none is larger than {LARGEST}")
                return
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            self._hear(data[start : start + length])
            start += length
        self._received = data[start:]


class Receipt:
    """What is still to come into one array, or to leave it."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left
        """Bytes."""


class Stream(Connection):
    """The bytes of arrays, to and from one rank, in an order both ends know."""

    def __init__(self, wire: ConnectionSet, connection: socket.socket, lost: Lost) -> None:
        self._unsent: deque[tuple[memoryview, Receipt]] = deque()
        self._awaited: deque[tuple[memoryview, Receipt]] = deque()
        super().__init__(wire, connection, lost)

    @property
    def is_sending(self) -> bool:
        """Whether arrays that were given to `send` are still needed."""
        return bool(self._unsent)

    @property
    def is_receiving(self) -> bool:
        """Whether something that was asked for has not come yet."""
        return bool(self._awaited)

    def send(self, data: memoryview) -> Receipt:
        """Send bytes. What they lie in must not change before all have left."""
        receipt = Receipt(len(data))
        if not receipt.left:
            return receipt
        self._unsent.append((data, receipt))
        if self.is_lost:
            self._mourn()
        elif len(self._unsent) == 1:
            try:
                self._write()
            except OSError as error:
                self._lose(_reason(error))
        return receipt

    def receive(self, into: memoryview) -> Receipt:
        """Receive bytes, after those that earlier calls asked for."""
        receipt = Receipt(len(into))
        if not receipt.left:
            return receipt
        self._awaited.append((into, receipt))
        if self.is_lost:
            self._mourn()
        elif len(self._awaited) == 1:
            try:
                self._read()
            except OSError as error:
                self._lose(_reason(error))
        return receipt

    def _mourn(self) -> None:
        """A rank that has left after it did its part is not missed by anybody."""
        if self._unsent or self._awaited:
            super()._mourn()

    def _write(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                data, receipt = unsent[0]
                sent = self.socket.send(data)
                receipt.left -= sent
                if receipt.left:
                    unsent[0] = data[sent:], receipt
                else:
                    unsent.popleft()
        except BlockingIOError:
            self._want(self.mask | _WRITE)
        else:
            self._want(self.mask & ~_WRITE)

    def _read(self) -> None:
        awaited = self._awaited
        try:
            for _ in itertools.count() if self.is_detached else range(_TURNS):
                if not awaited:
                    return
                into, receipt = awaited[0]
                count = self.socket.recv_into(into)
                if not count:
                    self._lose("its connection was closed")
                    return
                receipt.left -= count
                if receipt.left:
                    awaited[0] = into[count:], receipt
                else:
                    awaited.popleft()
        except BlockingIOError:
            pass
        if awaited:
            self._want(self.mask | _READ)

    def turn(self, mask: int) -> None:
        if self._awaited or not mask & ~_WRITE:
            super().turn(mask)
            return
        # Nobody has asked for anything yet. Either the peer is ahead of us, and what it sends stays in the kernel's buffer
        # until somebody does, or it is gone.
        super().turn(mask & _WRITE)
        try:
            if not self.socket.recv(1, socket.MSG_PEEK):
                self._lose("its connection was closed")
            elif mask & (select.EPOLLHUP | select.EPOLLERR):
                self._detach()  # a hang-up cannot be masked; what has come before it is still wanted
            else:
                self._want(self.mask & ~_READ)
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(_reason(error))


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "nothing was heard from its host any more"
    return f"its connection broke ({error.strerror or error})"
