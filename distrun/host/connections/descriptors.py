"""Limits for the connections that a process accepts besides its work: they must not use up its file descriptors."""

from __future__ import annotations

import errno
import resource
import socket
import time

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The error numbers of an `accept` that fails for lack of resources while a connection waits."""
PAUSE = 1.0
"""Seconds to wait before accepting another connection when descriptors are scarce."""
_RESERVE = 16  # descriptors for the work of the process


def are_scarce(descriptor: int) -> bool:
    """Return whether few descriptors are left, given a new `descriptor`: the kernel returns the lowest free number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - _RESERVE


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection, once descriptors are not scarce, or None if the listener was shut down."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                return None
        else:
            if not are_scarce(connection.fileno()):
                return connection
            connection.close()
        time.sleep(PAUSE)
