"""Channels: TCP connections that carry messages of any length, and swaps of small arrays over them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from distrun.runtime.operations.handle import Flat
from distrun.runtime.transport.connections import READ, WRITE, Connection, ConnectionSet, OnClose, reason_of
from distrun.runtime.transport.shared_memory.mailbox import LARGEST
from distrun.runtime.transport.shared_memory.swap import ANSWERED, NO_ROOM, SENT, SwapFunction

LARGEST_FRAME = LARGEST + (16 << 10)
"""Bytes of the largest message: leaders of hosts wrap the messages that they pass on in envelopes."""
_LENGTH = struct.Struct("<I")
_CHUNK = 96 << 10
"""The most bytes that are read at a time. From 128 KiB on, the C library would map new memory for each read, which
takes longer than the read."""


class Channel(Connection):
    """Messages to and from one rank. Each is sent as its length in four bytes, then its bytes."""

    def __init__(
        self,
        connections: ConnectionSet,
        connection: socket.socket,
        on_message: Callable[[bytes], None],
        on_close: OnClose,
    ) -> None:
        """`on_message` is called with each received message."""
        self._on_message = on_message
        self._unsent = bytearray()
        self._received = b""
        super().__init__(connections, connection, on_close)

    def send(self, message: bytes) -> None:
        """Send `message`. It neither blocks nor fails: for a broken connection see `OnClose`."""
        assert len(message) <= LARGEST_FRAME, len(message)
        if not self.is_closed:
            self._send_frame(_LENGTH.pack(len(message)) + message)

    def _send_frame(self, frame: bytes) -> None:
        if self._unsent:
            self._unsent += frame
            return
        try:
            sent = self.socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the other side is gone: reading finds the reason, perhaps in its last message
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._want(READ | WRITE)

    @property
    def can_swap(self) -> bool:
        """Whether nothing else waits to be sent, or has been received in part."""
        return not (self._unsent or self._received or self.is_closed or self._reads_ahead)

    def swap(self, message: Sequence[bytes | memoryview], looks: int) -> memoryview | None:
        """Send a message, given in parts, and look up to `looks` times for one of the same length and with the same
        first part, which is returned without that. Other messages are handled as always. Requires `can_swap`."""
        length = sum(map(len, message))
        frame = b"".join([_LENGTH.pack(length), *message])
        self._send_frame(frame)
        data, failure = b"", None
        for _ in range(looks):
            try:
                more = self.socket.recv(_CHUNK)
            except BlockingIOError:
                continue
            except OSError as error:
                failure = error
                break
            data = data + more if data else more
            if not more or len(data) >= len(frame):
                break
        start = _LENGTH.size + len(message[0])
        if len(data) == len(frame) and data[:start] == frame[:start]:
            return memoryview(data)[start:]
        if data:  # first: the last message may tell why the other side is gone
            self._handle(data)
        if failure is not None:
            self._close(reason_of(failure))
        return None

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            self._want(READ | WRITE)
            return
        except OSError:
            self._unsent.clear()  # as in `send`
        self._want(READ)

    @property
    def is_sending(self) -> bool:
        """Whether messages are pending because the kernel's buffer is full."""
        return bool(self._unsent) and not self.is_closed

    def shut_down(self) -> None:
        """Shut down a connection whose other side is gone. What it sent can still be read."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def _read(self) -> None:
        while self._read_some() and self._reads_ahead and not self.is_closed:
            pass

    def _read_some(self) -> bool:
        """Read once, handle the messages, and return whether there was any data."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close("its connection was closed")
            return False
        return self._handle(data)

    def _handle(self, data: bytes) -> bool:
        """Handle the messages in received data. Return False if the connection had to be closed."""
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


class ChannelSwap:
    """Swaps of small arrays with the rank at the other end of a channel: what `Swap` does through mailboxes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def prepare(self, header: bytes, count: int, dtype: np.dtype[Any], factor: float) -> SwapFunction:
        """See `Swap.prepare`. `count` may be any."""
        return partial(self._swap, header, dtype.type(factor))

    def _swap(self, header: bytes, factor: np.floating[Any], array: Flat, result: Flat, looks: int) -> int:
        channel = self._channel
        if not channel.can_swap:
            return NO_ROOM
        answer = channel.swap((header, array.data.cast("B")), looks)
        if answer is None:
            return SENT
        with np.errstate(all="ignore"):
            np.add(array, np.frombuffer(answer, array.dtype), out=result)
            if factor != 1:
                result *= factor
        return ANSWERED
