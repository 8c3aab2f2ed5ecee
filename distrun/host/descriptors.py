"""Connections that a process takes beside its work, which must not use up the files that it may have open."""

from __future__ import annotations

import errno
import resource
import socket
import time

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The numbers of errors which say that no connection can be accepted at present, while one waits."""
PAUSE = 1.0
"""Seconds in which no further connection is accepted when descriptors are scarce."""
_RESERVE = 16  # descriptors for the work of the process


def are_scarce(descriptor: int) -> bool:
    """Whether few descriptors are left, which a new one tells: the kernel gives the lowest that is free."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - _RESERVE


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection, when descriptors are not scarce; None when the listener was shut down."""
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
