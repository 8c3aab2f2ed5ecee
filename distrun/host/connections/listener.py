"""Listening: accepts TCP connections, and returns only connections with clients that know the job key."""

from __future__ import annotations

import errno
import resource
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrun.errors import BootstrapError
from distrun.host.connections.authentication import AuthenticationError, NonblockingHandshake
from distrun.host.connections.descriptors import OUT_OF_RESOURCES
from distrun.host.connections.handshake import (
    HANDSHAKE_TIMEOUT,
    MAX_GREETING,
    Accepted,
    begin_greeting,
    context,
    encrypted,
    server_handshake,
)
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.endpoints import at_free_port

MAX_HANDSHAKES = 1024
"""The most handshakes that are under way at once, or a quarter of this process's limit of open files, if that is less.
Beyond this, the oldest is dropped for each new one."""
_BACKLOG = 4096
_PORT_TRIES = 20  # tries to find a port that is free at several addresses
_BURST = 64  # the most connections accepted before handshakes continue


def listen(address: str, port: int = 0, shared: bool = False) -> socket.socket:
    """Return a socket that listens on a numeric address.

    Args:
        address: the address, IPv4 or IPv6.
        port: the port. 0 for any free port that DISTRUN_PORTS allows.
        shared: whether other processes of this user may bind the port, too (SO_REUSEPORT), such as one that has
            reserved it. Connections go to the sockets that listen.

    Raises:
        OSError: the address is not one of this machine, or the port is taken.
        UsageError: none of the allowed ports is free.
    """
    if not port:
        return at_free_port(lambda free: _listen(address, free, shared))
    return _listen(address, port, shared)


def listen_at(addresses: Sequence[str]) -> list[socket.socket]:
    """Return sockets that listen at all `addresses`, with the same port. Raises `OSError`."""
    for left in reversed(range(_PORT_TRIES)):
        sockets: list[socket.socket] = []
        try:
            for address in addresses:
                sockets.append(listen(address, sockets[0].getsockname()[1] if sockets else 0))
        except OSError as error:
            for each in sockets:
                each.close()
            if error.errno != errno.EADDRINUSE or not left:
                raise
        else:
            return sockets
    raise AssertionError("the last try returns or raises")


def _listen(address: str, port: int, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@dataclass
class _Client:
    """A client whose handshake is under way."""

    connection: socket.socket
    handshake: NonblockingHandshake[Accepted]
    address: str
    until: float
    events: int = select.EPOLLOUT
    """The events that are waited for. The first step is to send."""


class Listener:
    """Accepts connections, authenticates many clients at once, and returns those that know the key.

    No client delays another: those that send nothing, garbage, or the right bytes too slowly are dropped after
    `HANDSHAKE_TIMEOUT`, or earlier if there are more than `MAX_HANDSHAKES`. One thread at a time may use it.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], key: bytes, greeting: bytes = b"", is_encrypted: bool = False
    ) -> None:
        """
        Args:
            listeners: listening sockets. `close` closes them.
            key: the job key.
            greeting: the bytes that every client is sent first, before it has proved anything. At most 16 KiB.
            is_encrypted: whether to encrypt connections. Clients must have the same setting.
        """
        if len(greeting) > MAX_GREETING:
            raise ValueError(f"a greeting of {len(greeting)} bytes is longer than {MAX_GREETING}")
        self._key = key
        self._is_encrypted = is_encrypted
        self._greeting = begin_greeting(greeting, is_encrypted)
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._clients: dict[int, _Client] = {}  # the oldest first
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = MAX_HANDSHAKES if limit == resource.RLIM_INFINITY else max(1, min(MAX_HANDSHAKES, limit // 4))
        self._epoll = select.epoll()
        for listener in listeners:
            listener.setblocking(False)
            self._epoll.register(listener, select.EPOLLIN)
        self.refused = 0
        """The number of clients that gave a wrong proof."""
        self.refused_address = ""
        """The address of the last client that gave a wrong proof."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has something to do.

        Clients that have timed out do not make it readable. The next `receive` drops them.
        """
        return self._epoll.fileno()

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """The addresses and ports of the listening sockets."""
        return [listener.getsockname()[:2] for listener in self._listeners.values()]

    def describe_refused(self) -> str:
        """Return `2 clients did not know the job key, the last from 10.0.0.9`, or "" if there were none."""
        if not self.refused:
            return ""
        if self.refused == 1:
            return f"1 client, from {self.refused_address}, did not know the job key"
        return f"{self.refused} clients did not know the job key, the last from {self.refused_address}"

    def receive(self, timeout: float | None) -> tuple[socket.socket, dict[str, Any]] | None:
        """Return the connection and the introduction of the next client that knows the key, or None after `timeout`.

        The connection is blocking, without a timeout, with TCP options set. Nothing has been read from it after the
        introduction.

        Args:
            timeout: seconds to wait. 0 to do only what needs no waiting. None to wait for ever.

        Raises:
            BootstrapError: this process has no file descriptors left.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._drop_late_clients(now)
            ready = [fd for fd, _ in self._epoll.poll(self._pause(now, deadline))]
            # Handshakes under way go first: if thousands of clients connect at once, new ones would displace them.
            for fd in ready:
                accepted = self._advance(fd) if fd in self._clients else None
                # The next call handles the other events.
                if accepted is not None:
                    return encrypted(self._hand_over(fd), accepted.session), accepted.introduction
            for fd in ready:
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """Stop listening and end the handshakes under way. May be called twice."""
        for fd in list(self._clients):
            self._drop(fd)
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._epoll.close()

    def _pause(self, now: float, deadline: float | None) -> float | None:
        """Return how long to wait for events, at most until the oldest client times out."""
        ends = [client.until for client in self._clients.values()][:1]
        if deadline is not None:
            ends.append(deadline)
        return max(0.0, min(ends) - now) if ends else None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(max(1, min(_BURST, self._most - len(self._clients)))):
            try:
                connection, address = listener.accept()
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    return  # no client is waiting, or the last one has already closed its connection
                if not self._clients:
                    raise BootstrapError(
                        f"no connection can be accepted: {error.strerror}; raise the limit of open files (ulimit -n)"
                    ) from None
                self._drop(next(iter(self._clients)))
                continue
            if len(self._clients) >= self._most:
                self._drop(next(iter(self._clients)))
            self._begin(connection, address[0] if address else "this host")

    def _begin(self, connection: socket.socket, address: str) -> None:
        try:
            connection.setblocking(False)
            handshake = server_handshake(self._greeting, self._key, self._prepare(connection), self._is_encrypted)
        except (OSError, BootstrapError):
            connection.close()  # the client is already gone, or not allowed
            return
        fd = connection.fileno()
        self._clients[fd] = _Client(
            connection, NonblockingHandshake(connection, handshake), address, time.monotonic() + HANDSHAKE_TIMEOUT
        )
        self._epoll.register(fd, select.EPOLLOUT)

    def _prepare(self, connection: socket.socket) -> bytes:
        """Set the options of a new connection. Return the context of its proofs."""
        set_tcp_options(connection)
        return context(connection.getsockname())

    def _advance(self, fd: int) -> Accepted | None:
        """Continue a handshake. Return its result when it is complete, else None."""
        client = self._clients[fd]
        try:
            if client.handshake.advance():
                return client.handshake.result
        except AuthenticationError:
            self.refused += 1
            self.refused_address = client.address
            self._drop(fd)
        except (OSError, BootstrapError):
            self._drop(fd)
        else:
            events = select.EPOLLOUT if client.handshake.wants_to_send else select.EPOLLIN
            if events != client.events:
                client.events = events
                self._epoll.modify(fd, events)
        return None

    def _hand_over(self, fd: int) -> socket.socket:
        client = self._clients.pop(fd)
        self._epoll.unregister(fd)
        client.connection.setblocking(True)
        return client.connection

    def _drop(self, fd: int) -> None:
        client = self._clients.pop(fd)
        client.handshake.close()
        client.connection.close()  # this also removes it from the epoll object

    def _drop_late_clients(self, now: float) -> None:
        while self._clients:
            fd, client = next(iter(self._clients.items()))
            if client.until > now:
                return
            self._drop(fd)
