"""The TCP options of every connection between processes of a job."""

from __future__ import annotations

import socket

DEAD_HOST_TIMEOUT = 15.0
"""Seconds of silence after which a connection counts as broken, where nobody says otherwise."""
_PROBES = 3
_LONGEST = 32767  # seconds, the kernel's limit for the two times below


def keepalive_times(silence: float) -> tuple[int, int, int]:
    """Return when to send keepalives that notice so many seconds of silence.

    Returns:
        Seconds until the first, seconds from one to the next, and how many must stay unanswered: 6, 3 and 3 for 15 s.
    """
    interval = min(max(1, round(silence / 5)), _LONGEST)
    probes = min(max(1, (round(silence) - 1) // interval), _PROBES)
    return min(max(1, round(silence) - probes * interval), _LONGEST), interval, probes


def set_tcp_options(connection: socket.socket, silence: float = DEAD_HOST_TIMEOUT, may_be_unread: bool = False) -> None:
    """Let small messages leave at once, and a dead host be noticed by its silence.

    Args:
        connection: a TCP socket.
        silence: seconds after which the other host counts as dead; 0: never. The kernel counts whole seconds, and takes
            two at least.
        may_be_unread: whether data may wait for longer than that (TCP_USER_TIMEOUT). Beware: Linux also counts data
            that a host does not take because its process does not read (it computes, or it is stopped), although the
            host is alive.
    """
    first, interval, probes = keepalive_times(silence)
    unread = 0 if may_be_unread else min(int(silence * 1000), (1 << 31) - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(silence > 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, first)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread)
