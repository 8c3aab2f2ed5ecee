"""The TCP options of every connection between processes of a job.

A connection on which nothing waits is probed often, so that a cut is counted from its beginning. On one where something
waits the kernel sends again instead, after pauses that double: a cut of 25 s would last for 50. So the pauses are
limited, where the kernel can do that (Linux 6.15), and a cut is over soon after the link is back.
"""

from __future__ import annotations

import math
import socket
from contextlib import suppress

DEAD_HOST_TIMEOUT = 15.0
"""Seconds of silence after which a connection counts as broken, where nobody says otherwise."""

_PROBES = 10  # within the time that counts as silence
_RETRIES = 7  # at least so many are sent in that time where the kernel gives up after 15, the first ones quickly
_LONGEST = 32767  # seconds, the kernel's limit for keepalives
_RTO_MAX_MS = 44  # TCP_RTO_MAX_MS, which Python does not name
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 120.0  # seconds, the kernel's limits for it
_NEVER = (1 << 31) - 1  # milliseconds: 24 days
_MOST_RETRIED = 840.0  # seconds; the kernel gives up after 924 whatever the pauses are


def keepalive_times(timeout: float) -> tuple[int, int, int]:
    """Return when to send keepalives that notice so many seconds of silence, and no shorter ones.

    Returns:
        Seconds until the first, seconds from one to the next, and how many must stay unanswered: 1, 1 and 15 for 15 s.
    """
    interval = min(max(1, int(timeout / _PROBES)), _LONGEST)
    return interval, interval, min(max(1, math.ceil(timeout / interval)), 127)


def set_tcp_options(connection: socket.socket, timeout: float = DEAD_HOST_TIMEOUT, may_be_unread: bool = False) -> None:
    """Let small messages leave at once, and a dead host be noticed by its silence, within a tenth more than its time.

    Args:
        connection: a TCP socket.
        silence: seconds after which the other host counts as dead; 0: never. The kernel counts whole seconds.
        may_be_unread: whether data may wait for longer than that without being read. TCP_USER_TIMEOUT would be wrong
            there: Linux also counts data that a host does not take because its process does not read (it computes, or
            it is stopped), although the host is alive. Then the kernel gives up by its number of retries, within some
            14 s, or twice the silence where that is longer; minutes where it cannot limit the pauses between them.
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
    """Have the kernel send again what is lost at least so often, if it can be told."""
    pause = min(max(_SHORTEST_PAUSE, seconds), _LONGEST_PAUSE)
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, int(pause * 1000))
