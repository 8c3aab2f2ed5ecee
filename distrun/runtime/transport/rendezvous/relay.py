"""The relay of a host: the rank that connects with rank 0 also for the other ranks of its host.

It reports to rank 0 which of them connect and which end, so rank 0 knows as much as if each had connected itself, and
its messages to users are the same. It passes on rank 0's messages unchanged.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any

from distrun.contract.elastic.interruption import Interruption, check, stop_descriptors
from distrun.errors import BootstrapError, DistrunError
from distrun.host.connections.target import PeerConnection
from distrun.runtime.transport.rendezvous.local_connections import LocalListener
from distrun.runtime.transport.rendezvous.protocol import ERROR_TIMEOUT, Member, pack_message, send_message


class Relay:
    """Connects the other ranks of this host with rank 0, on the rank that is their relay."""

    def __init__(
        self,
        listener: LocalListener,
        server: PeerConnection,
        listening: Callable[[Member], tuple[list[socket.socket], Member]],
        tells_key: bool,
        interruption: Interruption | None,
    ) -> None:
        """`listener` is for the other ranks, and `server` the connection with rank 0. `listening` opens the listening
        sockets of a member, and returns them and the member with their endpoints. `tells_key`: whether to send the job
        key to the others."""
        self._listener = listener
        self._server = server.socket
        self._facts = {"endpoint": server.endpoint, "key": server.key.hex() if tells_key else ""}
        self._listening = listening
        self._interruption = interruption
        self._others: dict[int, tuple[socket.socket, Member]] = {}  # by descriptor
        self._told: set[int] = set()  # the descriptors of ranks that were sent the table, or a part of it

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_reason: object) -> None:
        """Close the connections with the other ranks."""
        for connection, _ in self._others.values():
            connection.close()

    def introduce(self, until: float) -> None:
        """Introduce ranks that connect to rank 0, until it sends a message, or until the monotonic time `until`.

        Raises:
            BootstrapError: the wait was interrupted.
        """
        with select.epoll() as epoll:
            for fd in (self._server.fileno(), self._listener.fileno(), *stop_descriptors(self._interruption)):
                epoll.register(fd, select.EPOLLIN)
            while (left := until - time.monotonic()) > 0:
                # At most a second, so that the listener drops clients whose handshake takes too long.
                ready = [fd for fd, _ in epoll.poll(min(left, 1.0))]
                check(self._interruption)
                if self._server.fileno() in ready:
                    return
                # The other ranks send nothing, so a readable connection has ended.
                gone = [fd for fd in ready if fd in self._others]
                for fd in gone:
                    epoll.unregister(fd)
                ended = [self._others[fd][1].rank for fd in gone]
                came = []
                while (client := self._listener.receive(0)) is not None:
                    introduction = self._take_in(*client)
                    if introduction is not None:
                        came.append(introduction)
                        epoll.register(client[0], select.EPOLLIN)
                if came or ended:
                    with suppress(OSError):  # rank 0 has sent a message or ended, which the next poll finds
                        send_message(self._server, {"came": came, "ended": ended}, left)

    def _take_in(self, connection: socket.socket, introduction: dict[str, Any]) -> dict[str, Any] | None:
        """Send a rank its listening sockets. Return its introduction to rank 0, or None if its own is malformed."""
        try:
            size, member = int(introduction["size"]), Member(*introduction["member"])
        except (KeyError, TypeError, ValueError):
            connection.close()
            return None
        try:
            sockets, member = self._listening(member)
        except OSError as error:
            connection.close()
            raise BootstrapError(f"nobody can listen for {member}: {error.strerror or error}") from None
        self._others[connection.fileno()] = connection, member
        with suppress(OSError):  # it has ended, which the next poll finds
            connection.settimeout(ERROR_TIMEOUT)
            socket.send_fds(connection, [b"!"], [each.fileno() for each in sockets])
            send_message(connection, self._facts, ERROR_TIMEOUT)
        for each in sockets:
            each.close()
        return {"size": size, "member": astuple(member)}

    def pass_on(self, packed: bytes, until: float) -> None:
        """Pass on the table, until the monotonic time `until`. Raises `BootstrapError` if one of the ranks has
        ended."""
        for fd, (connection, member) in self._others.items():
            try:
                self._told.add(fd)
                connection.settimeout(max(1.0, until - time.monotonic()))
                connection.sendall(packed)
            except OSError as error:
                raise BootstrapError(f"{member} cannot be told who is there: {error}") from None

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Send the error to the other ranks if the body raises a DistrunError."""
        try:
            yield
        except DistrunError as error:
            for fd, (connection, _) in self._others.items():
                if fd not in self._told:
                    with suppress(OSError):
                        connection.settimeout(ERROR_TIMEOUT)
                        connection.sendall(pack_message({"error": str(error)}))
            raise
