"""A connection for messages with one rank. Neither sending nor receiving frames ever blocks.

The bytes of a large message go straight from the sender's memory to the socket, and from there to the receiver's.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import termios
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from distrun.host.connections.tcp_info import TcpInfo
from distrun.runtime.collectives.point_to_point.frames import BYTES, HAVE_BODY, HEADER_SIZE, Frame, unpack
from distrun.runtime.collectives.point_to_point.transfer import Receive, Send
from distrun.runtime.transport.connections import SILENT, reason_of

if TYPE_CHECKING:
    from distrun.runtime.collectives.point_to_point.delivery import Delivery

_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
ROOM = 1 << 18
"""Bytes of small frames received at a time."""
_SLICE = 1 << 20  # bytes of a large message received at a time
_MAX_READS = 4  # before other connections get a turn


class Connection:
    """A connection with a rank, over any stream socket. The caller ensures that one thread uses it at a time.

    The caller calls `receive` and `flush` when `epoll` reports the socket.
    """

    def __init__(
        self, rank: int, connection: socket.socket, epoll: select.epoll, delivery: Delivery, room: memoryview
    ) -> None:
        """This object closes `connection`, whose socket is registered with `epoll`. `delivery` is told of frames, of
        the ends of messages and of the end of the connection. `room` is `ROOM` bytes to receive into, used only while
        `receive` runs: all connections of a thread share it."""
        connection.setblocking(False)
        self.rank = rank
        self.fd = connection.fileno()
        self.is_closed = False
        self.granted: dict[int, Receive] = {}
        """The large messages that this rank has asked for and that have not begun to arrive, by number."""
        self.credit_owed = 0
        """Bytes of small messages received since the last credit was returned to the sender."""
        self._socket = connection
        self._epoll = epoll
        self._delivery = delivery
        self._room = room
        self._mask = _READ
        self._unsent: deque[tuple[memoryview, Send | None]] = deque()
        self._received = b""  # the beginning of an incomplete frame
        self._body: memoryview | None = None  # where the rest of a large message goes
        self._receive: Receive | None = None  # the receive of this message, or None if it was abandoned
        # An encrypted connection holds decrypted bytes in the process, which poll does not report.
        self._reads_ahead = hasattr(connection, "reads_ahead")
        epoll.register(self.fd, _READ)

    # Sending ----------------------------------------------------------------------------------------------------------

    def put(self, frame: bytes, body: memoryview | None = None, send: Send | None = None) -> None:
        """Send a frame, and after it `body`, the memory of a large message. `on_sent` is called when all has left."""
        is_first = not self._unsent
        self._unsent.append((memoryview(frame), None if body is not None else send))
        if body is not None:
            self._unsent.append((body, send))
        if is_first:
            self.flush()

    def flush(self) -> None:
        """Send as much as fits into the kernel's buffer."""
        unsent = self._unsent
        try:
            while unsent and not self.is_closed:
                data, send = unsent[0]
                if data:
                    data = data[self._socket.send(data) :]
                if data:
                    unsent[0] = data, send
                    continue
                unsent.popleft()
                if send is not None:
                    self._delivery.on_sent(self, send)
        except BlockingIOError:
            self._want(_READ | _WRITE)
            return
        except OSError:
            unsent.clear()  # the other side is gone. `receive` finds out why, after the last frames that it sent
        self._want(_READ)

    @property
    def is_sending(self) -> bool:
        """Whether frames wait here because the kernel's buffer is full."""
        return bool(self._unsent) and not self.is_closed

    @property
    def is_under_way(self) -> bool:
        """Whether something sent has not arrived at the other host.

        Closing a TCP connection that holds unread input sends a reset, and the kernel then drops unsent output.
        """
        if self.is_closed:
            return False
        if self._unsent or self._socket.family == socket.AF_UNIX:
            return bool(self._unsent)
        return any(fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4)))

    # Receiving --------------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Receive what has arrived, at most `_MAX_READS` reads of it."""
        rounds = 0
        try:
            while not self.is_closed and self._receive_some():
                rounds += 1
                if rounds >= _MAX_READS and not self._reads_ahead:
                    return
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(reason_of(error))

    def give_up_if_silent(self, keepalive: float) -> None:
        """End a connection with another host that has not acknowledged anything for `keepalive` seconds."""
        if not self.is_closed and self._socket.family != socket.AF_UNIX:
            with suppress(OSError):  # `receive` finds out why it has ended
                if TcpInfo.of(self._socket).is_dead(keepalive):
                    self._end(SILENT)

    def abandon(self, receive: Receive) -> None:
        """Discard the bytes of a message that was asked for: the caller may reuse its memory now."""
        for number, each in list(self.granted.items()):
            if each is receive:
                self.granted[number] = Receive(memoryview(bytearray(receive.size)), (), "", 0, "")
        if self._receive is receive and self._body is not None:
            self._receive, self._body = None, memoryview(bytearray(len(self._body)))

    def _receive_some(self) -> bool:
        """Read once, and return whether there may be more."""
        if self._body is not None:
            space = self._body[:_SLICE]
            count = self._socket.recv_into(space)
            if count:
                self._advance(count)
        else:
            begun = len(self._received)
            self._room[:begun] = self._received
            space = self._room[begun:]
            count = self._socket.recv_into(space)
            self._received = self._parse(self._room[: begun + count])
        if not count:
            self._end("its connection was closed")
        return count == len(space) or (self._reads_ahead and count > 0)

    def _parse(self, data: memoryview) -> bytes:
        """Handle all complete frames in `data`, and return the rest."""
        offset = 0
        while len(data) - offset >= HEADER_SIZE and not self.is_closed:
            frame = unpack(data, offset)
            start = offset + HEADER_SIZE
            if frame.kind == BYTES:
                here = data[start : start + frame.size]
                offset = start + len(here)
                self._begin_body(frame, here)
                if self._body is not None:
                    break
                continue
            end = start + (frame.size if frame.kind in HAVE_BODY else 0)
            if end > len(data):
                break
            offset = end
            self._delivery.on_frame(self, frame, data[start:end])
        return bytes(data[offset:])

    def _begin_body(self, frame: Frame, here: memoryview) -> None:
        """Begin to receive a large message, whose first bytes are `here`."""
        self._receive = self.granted.pop(frame.number)
        self._body = self._receive.memory
        self._body[: len(here)] = here
        self._advance(len(here))

    def _advance(self, count: int) -> None:
        assert self._body is not None
        self._body = self._body[count:]
        if not self._body:
            receive, self._body, self._receive = self._receive, None, None
            if receive is not None:
                self._delivery.on_bytes(self, receive)

    # The end ----------------------------------------------------------------------------------------------------------

    def _end(self, how: str) -> None:
        if not self.is_closed:
            self.close()
            self._delivery.on_end(self, how)

    def unfinished(self) -> list[Receive]:
        """Return the receives of large messages that have not arrived completely."""
        return [*self.granted.values(), *([] if self._receive is None else [self._receive])]

    def close(self) -> None:
        """Close the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._epoll.unregister(self.fd)
            self._socket.close()

    def disown(self) -> None:
        """Close a forked child's copy of the socket, but do not unregister it: the parent shares the epoll object."""
        self.is_closed = True
        os.close(self._socket.detach())

    def _want(self, mask: int) -> None:
        if mask != self._mask and not self.is_closed:
            self._mask = mask
            self._epoll.modify(self.fd, mask)
