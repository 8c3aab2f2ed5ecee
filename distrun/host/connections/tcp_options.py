"""The TCP options of every connection between processes of a job.

An idle connection is probed often by keepalives, so that an outage is noticed soon after its beginning. If data is
unacknowledged, the kernel retransmits it instead, after pauses that double: an outage of 25 s would last for 50 s. So
the pauses are limited if the kernel supports this (Linux 6.15), and the connection recovers soon after the link.
"""

from __future__ import annotations

import math
import socket
from contextlib import suppress

DEAD_HOST_TIMEOUT = 15.0
"""The default number of seconds without an answer after which a connection counts as broken."""

_PROBES = 10  # keepalives within the timeout
_RETRIES = 7  # retransmissions within the timeout, at least. The kernel stops after 15, the first of which are quick
_LONGEST = 32767  # seconds, the kernel's limit for keepalives
_RTO_MAX_MS = 44  # TCP_RTO_MAX_MS, which Python's socket module lacks
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 120.0  # seconds, the kernel's limits for it
_NEVER = (1 << 31) - 1  # milliseconds: 24 days
_MOST_RETRIED = 840.0  # seconds: the kernel stops retransmitting after 924 s with any pauses


def keepalive_times(timeout: float) -> tuple[int, int, int]:
    """Return the times of keepalives that break a connection after `timeout` seconds without an answer, not earlier.

    Returns:
        Seconds until the first, seconds from one to the next, and how many must stay unanswered: 1, 1 and 15 for 15 s.
    """
    interval = min(max(1, int(timeout / _PROBES)), _LONGEST)
    return interval, interval, min(max(1, math.ceil(timeout / interval)), 127)


def set_tcp_options(connection: socket.socket, timeout: float = DEAD_HOST_TIMEOUT, may_be_unread: bool = False) -> None:
    """Set options so that small messages are sent at once, and a dead host is noticed at most a tenth after `timeout`.

    Args:
        connection: a TCP socket.
        timeout: seconds without an answer after which the other host counts as dead. 0 for never. The kernel counts
            whole seconds.
        may_be_unread: whether data may wait longer than `timeout` without being read. In this case, TCP_USER_TIMEOUT
            would be wrong: Linux also counts data that a host does not accept because its process does not read (it
            computes, or it is stopped), although the host is alive. Then the kernel breaks the connection by its number
            of retransmissions instead, within about 14 s, or twice the timeout if that is longer, or minutes if it
            cannot limit the pauses between them.
    """
    first, interval, probes = keepalive_times(timeout)
    pause = min(max(_SHORTEST_PAUSE, timeout / (_RETRIES if may_be_unread else _PROBES)), _LONGEST_PAUSE)
    if not timeout or (may_be_unread and timeout > _MOST_RETRIED):
        user_timeout = _NEVER
    elif may_be_unread:
        user_timeout = 0
    else:
        user_timeout = min(int((timeout + pause) * 1000), _NEVER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(timeout > 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, first)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout)
    limit_pauses(connection, pause)


def limit_pauses(connection: socket.socket, seconds: float) -> None:
    """Limit the kernel's pauses between retransmissions to `seconds`, if the kernel supports this."""
    pause = min(max(_SHORTEST_PAUSE, seconds), _LONGEST_PAUSE)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, int(pause * 1000))
