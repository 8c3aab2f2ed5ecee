"""Connections between processes of one host and one user that know the job key, over abstract Unix sockets."""

from __future__ import annotations

import socket
from functools import partial

from distrun.contract.elastic.interruption import Interruption, await_readable, stop_descriptors
from distrun.host import abstract_sockets
from distrun.host.abstract_sockets import check_same_user
from distrun.host.connections.authentication import run_handshake
from distrun.host.connections.dialer import introduce
from distrun.host.connections.handshake import HANDSHAKE_TIMEOUT, Introduction, client_handshake
from distrun.host.connections.listener import Listener


class LocalListener(Listener):
    """Accepts connections from processes of this host and user that know the job key."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        """`listener` is a listening abstract Unix socket. `key` is the job key, empty if the job has none."""
        super().__init__([listener], key)
        self._context: bytes = listener.getsockname()

    def _prepare(self, connection: socket.socket) -> bytes:
        check_same_user(connection)
        return self._context


def connect_locally(
    address: bytes, key: bytes, introduction: Introduction, deadline: float, interruption: Interruption | None
) -> socket.socket:
    """Return a connection with a `LocalListener`, after one try.

    Args:
        address: the address of its abstract Unix socket.
        key: the job key, empty if the job has none.
        introduction: the message that introduces this process to the other side.
        deadline: the monotonic time when to stop waiting.
        interruption: may end the wait earlier.

    Raises:
        OSError: no process listens there, or the connection ended.
        BootstrapError: the listening process belongs to another user or does not know the key, or the wait was
            interrupted.
    """
    connection = abstract_sockets.connect(socket.SOCK_STREAM, address)
    try:
        connection.settimeout(HANDSHAKE_TIMEOUT)
        awaiting = partial(await_readable, until=deadline, interruption=interruption)
        run_handshake(connection, client_handshake(key, address), awaiting)
        introduce(connection, introduction, deadline, stop_descriptors(interruption))
    except BaseException:
        connection.close()
        raise
    return connection
