"""Connections for messages between the ranks of a host: abstract Unix sockets, named after the rendezvous.

Each side checks that the other is a process of the same user and, if the job has a key, that it knows the key.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress

from distrun.errors import BootstrapError
from distrun.host import abstract_sockets
from distrun.host.abstract_sockets import Names
from distrun.host.connections.authentication import run_handshake
from distrun.host.connections.dialer import introduce
from distrun.host.connections.handshake import client_handshake
from distrun.runtime.transport.rendezvous.local_connections import LocalListener as _LocalListener
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous

_STEP_TIMEOUT = 5.0  # seconds for each step of a handshake
_BUFFER = 1 << 21  # bytes in the socket's buffer, if the kernel allows it: the other side is woken less often
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05  # seconds between attempts


class LocalListener(_LocalListener):
    """Accepts connections from the ranks of this host."""

    def __init__(self, rendezvous: LocalRendezvous, rank: int) -> None:
        """Listen. Raises `BootstrapError` if another process of this user already listens at this address."""
        try:
            listener = abstract_sockets.listen(socket.SOCK_STREAM, _address(rendezvous, rank), 1024)
        except OSError as error:
            raise BootstrapError(f"rank {rank} cannot listen for messages of this host's ranks: {error}") from None
        super().__init__(listener, rendezvous.key or b"")

    def _prepare(self, connection: socket.socket) -> bytes:
        context = super()._prepare(connection)
        _enlarge_buffers(connection)
        return context


def connect(rendezvous: LocalRendezvous, names: Names, own: int, stop_fd: int, pauses: Pauses) -> socket.socket | None:
    """Try once to connect with a rank of this host. If it does not listen yet, pause and return None.

    Args:
        rendezvous: the rendezvous of the ranks of this host.
        names: the names of the rank to connect with (see `names_of`).
        own: this rank.
        stop_fd: readable when the attempt must end.
        pauses: the pauses between attempts.
    """
    for name in names.to_try():
        with suppress(OSError, BootstrapError):  # it does not listen yet, or another process does
            return _connect(rendezvous, name, own, stop_fd)
    pauses.pause(stop_fd)
    return None


def _connect(rendezvous: LocalRendezvous, name: bytes, own: int, stop_fd: int) -> socket.socket:
    connection = abstract_sockets.connect(socket.SOCK_STREAM, name)
    try:
        _enlarge_buffers(connection)
        connection.settimeout(_STEP_TIMEOUT)
        run_handshake(connection, client_handshake(rendezvous.key or b"", name), lambda each: _await(each, stop_fd))
        introduce(connection, {"rank": own}, float("inf"), (stop_fd,))
    except BaseException:
        connection.close()
        raise
    return connection


class Pauses:
    """Pauses between attempts, each longer than the one before: no event reports that an abstract socket appears."""

    def __init__(self) -> None:
        self._next = _SHORTEST_PAUSE

    def pause(self, stop_fd: int) -> None:
        """Sleep until the pause is over or `stop_fd` is readable."""
        poll = select.poll()
        poll.register(stop_fd, select.POLLIN)
        poll.poll(self._next * 1000)
        self._next = min(_LONGEST_PAUSE, 1.5 * self._next)


def is_readable(fd: int) -> bool:
    """Whether `fd` has something to read, without waiting."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _await(connection: socket.socket, stop_fd: int) -> None:
    poll = select.poll()
    for descriptor in (connection.fileno(), stop_fd):
        poll.register(descriptor, select.POLLIN)
    if connection.fileno() not in [fd for fd, _ in poll.poll(_STEP_TIMEOUT * 1000)]:
        raise TimeoutError("timed out")


def _enlarge_buffers(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)


def names_of(rendezvous: LocalRendezvous, rank: int) -> Names:
    """Return the names under which a rank may listen."""
    return Names(_address(rendezvous, rank))


def _address(rendezvous: LocalRendezvous, rank: int) -> bytes:
    return rendezvous.address(f"messages to {rank}")
