"""The relay of a host: the one of its ranks that connects with rank 0 for the others too.

It tells rank 0 who comes and who ends, so rank 0 knows as much as if each had connected itself, and its sentences are
the same. What rank 0 says it hands on as it came.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Any

from distrun.contract.elastic.interruption import Interruption, check, stop_descriptors
from distrun.errors import BootstrapError, DistrunError
from distrun.host.connections.target import PeerConnection
from distrun.runtime.transport.rendezvous.local_connections import LocalListener
from distrun.runtime.transport.rendezvous.protocol import ERROR_TIMEOUT, Member, pack_message, send_message


@dataclass(frozen=True)
class HostListener:
    """Where the other ranks of a host come."""

    socket: socket.socket
    """An abstract Unix socket that listens."""
    key: bytes
    """The job key; empty where the job has none."""


class Relay:
    """The other ranks of this host, seen from the one that connects with rank 0 for them."""

    def __init__(
        self,
        place: HostListener,
        server: PeerConnection,
        listening: Callable[[Member], tuple[list[socket.socket], Member]],
        tells_key: bool,
        interruption: Interruption | None,
    ) -> None:
        """
        Args:
            place: where they come.
            server: the connection with rank 0.
            listening: listens for one of them; returns the sockets, and the member with where that is.
            tells_key: whether they have to be told the job key.
            interruption: what ends the wait for them.
        """
        self._listener = LocalListener(place.socket, place.key)
        self._server = server.socket
        self._facts = {"endpoint": server.endpoint, "key": server.key.hex() if tells_key else ""}
        self._listening = listening
        self._interruption = interruption
        self._others: dict[int, tuple[socket.socket, Member]] = {}  # by descriptor
        self._told: set[int] = set()  # the descriptors to which the table, or a part of it, was sent

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_reason: object) -> None:
        """Close what leads to the others."""
        self._listener.close()
        for connection, _ in self._others.values():
            connection.close()

    def introduce(self, until: float) -> None:
        """Introduce who comes until rank 0 has something to say, or the monotonic time `until`.

        Raises:
            BootstrapError: the wait was interrupted.
        """
        with select.epoll() as epoll:
            for fd in (self._server.fileno(), self._listener.fileno(), *stop_descriptors(self._interruption)):
                epoll.register(fd, select.EPOLLIN)
            while (left := until - time.monotonic()) > 0:
                # A second at most: clients that take too long have to be dropped.
                ready = [fd for fd, _ in epoll.poll(min(left, 1.0))]
                check(self._interruption)
                if self._server.fileno() in ready:
                    return
                # Nothing is sent to us on these, so what can be read is the end of the connection.
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
                    with suppress(OSError):  # then rank 0 has something to say, or has ended
                        send_message(self._server, {"came": came, "ended": ended}, left)

    def _take_in(self, connection: socket.socket, introduction: dict[str, Any]) -> dict[str, Any] | None:
        """Give a rank its listening sockets; return what rank 0 is to know of it, None if it is not understood."""
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
        with suppress(OSError):  # it has ended, which will show
            connection.settimeout(ERROR_TIMEOUT)
            socket.send_fds(connection, [b"!"], [each.fileno() for each in sockets])
            send_message(connection, self._facts, ERROR_TIMEOUT)
        for each in sockets:
            each.close()
        return {"size": size, "member": astuple(member)}

    def pass_on(self, packed: bytes, until: float) -> None:
        """Hand on the table, until the monotonic time `until`; raises `BootstrapError` if one of them has ended."""
        for fd, (connection, member) in self._others.items():
            try:
                self._told.add(fd)
                connection.settimeout(max(1.0, until - time.monotonic()))
                connection.sendall(packed)
            except OSError as error:
                raise BootstrapError(f"{member} cannot be told who is there: {error}") from None

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Tell the others why this rank cannot wait any longer, if it cannot."""
        try:
            yield
        except DistrunError as error:
            for fd, (connection, _) in self._others.items():
                if fd not in self._told:
                    with suppress(OSError):
                        connection.settimeout(ERROR_TIMEOUT)
                        connection.sendall(pack_message({"error": str(error)}))
            raise
