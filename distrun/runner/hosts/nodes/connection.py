"""A connection between two launchers that have proved to know the same key: objects of JSON, one per line."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT, set_tcp_options

_MAX_LINE = 1 << 26  # bytes; a job of 100 000 ranks needs less


class Connection:
    """One connection. It neither blocks nor reads ahead of what is asked for."""

    def __init__(self, connection: socket.socket) -> None:
        """Args: a TCP connection with our options, which notice that the other host is gone."""
        connection.setblocking(False)
        self._socket = connection
        self.peer = ""
        """The other side's address in digits; empty when it was gone already."""
        with suppress(OSError):
            self.peer = str(connection.getpeername()[0])
        self.keepalive = DEAD_HOST_TIMEOUT
        """Seconds of silence after which the other side counts as gone; 0: never."""
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def keep_alive(self, keepalive: float) -> None:
        """From now on, give the other side up after so many seconds of silence, or never if they are 0."""
        self.keepalive = keepalive
        with suppress(OSError):
            set_tcp_options(self._socket, keepalive)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether something waits until the kernel takes it."""
        return bool(self._outgoing)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or what the kernel takes of it; `flush` sends the rest. Raises OSError."""
        self._outgoing += json.dumps(message).encode("ascii") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now. Raises OSError when the connection is broken."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that are complete, perhaps none.

        Raises:
            OSError: the connection is broken, or has ended.
            ValueError: what came is no message.
        """
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._incoming += data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = bytearray(rest)
        if len(rest) > _MAX_LINE:
            raise ValueError(f"a message is longer than {_MAX_LINE} bytes")
        return [dict(json.loads(line)) for line in lines]

    def close(self, timeout: float = 0.0) -> None:
        """Close the connection; wait until all is sent, for so many seconds at most."""
        give_up = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        try:
            while self._outgoing and (left := give_up - time.monotonic()) > 0:
                poll.poll(left * 1000)
                self.flush()
        except OSError:
            pass
        self._socket.close()


def in_words(error: Exception, host: str, keepalive: float = DEAD_HOST_TIMEOUT) -> str:
    """Return why a connection with the launcher of a host has ended, as a sentence; `keepalive` is what it allows."""
    if isinstance(error, TimeoutError):
        return f"nothing was heard from {host} for {keepalive:g} s: the host or the network to it is gone"
    if isinstance(error, (ConnectionError, EOFError)):
        return f"the launcher on {host} is gone"
    return f"the connection with the launcher on {host} is broken: {error}"
