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
    """Takes connections from processes of this host and user."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        """`listener`: an abstract Unix socket that listens; `key`: empty where the job has none."""
        super().__init__([listener], key)
        self._context: bytes = listener.getsockname()

    def _prepare(self, connection: socket.socket) -> bytes:
        check_same_user(connection)
        return self._context


def connect_locally(
    address: bytes, key: bytes, introduction: Introduction, deadline: float, interruption: Interruption | None
) -> socket.socket:
    """Connect with a `LocalListener`; try once.

    Args:
        address: of its abstract Unix socket.
        key: the job key; empty where the job has none.
        introduction: what the other side gets to know of us.
        deadline: the monotonic time at which to give up.
        interruption: what ends the wait before.

    Raises:
        OSError: nobody listens there, or the connection ended.
        BootstrapError: who listens is of another user or does not know the key, or the wait was interrupted.
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
