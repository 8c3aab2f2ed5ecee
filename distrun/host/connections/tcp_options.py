"""The TCP options of every connection between processes of a job."""

from __future__ import annotations

import socket

DEAD_HOST_TIMEOUT = 15.0
"""Seconds of silence after which a connection counts as broken."""


def set_tcp_options(connection: socket.socket, user_timeout: float = DEAD_HOST_TIMEOUT) -> None:
    """Let small messages leave at once, and a dead host be noticed after 15 s of silence.

    Args:
        connection: a TCP socket.
        user_timeout: seconds after which data that the other host does not take ends the connection (TCP_USER_TIMEOUT),
            0 for the system's quarter of an hour. Beware: Linux also counts data that a host does not take because its
            process does not read (it computes, or it is stopped), although the host is alive.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Three unanswered probes, 3 s apart, the first after 5 s of silence.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout * 1000))
