"""Departures: how an agent tells the ranks of its host, which wait in init, that a rank has ended before it joined.

All ranks inherit one end of a pair of sockets. They read the agent's message with MSG_PEEK, so that all can read it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

DEPARTURES_FD = "DISTRUN_DEPARTURES_FD"
"""The variable with the descriptor and its inode, `7:123456`. The inode is checked since a program between the agent
and a rank may have closed the descriptor, and its number may have been reused."""


class Departures:
    """The agent's side: reports departures."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = self._theirs.fileno()
        """The descriptor that the ranks must inherit."""
        self.environ = {DEPARTURES_FD: f"{self.descriptor}:{os.fstat(self.descriptor).st_ino}"}
        """The environment variable that the ranks must be given."""

    def tell(self, sentence: bytes) -> None:
        """Send the ranks a `sentence` about the rank that has ended. They only read the first one."""
        self._ours.setblocking(False)
        with suppress(BlockingIOError):
            self._ours.send(sentence)


class Departure:
    """A rank's side: the end of another rank, as an interruption of waiting for it."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is copied."""
        self._socket = socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stop_fd = self._socket.fileno()
        """Readable when a rank has ended."""

    @property
    def interruption(self) -> str | None:
        """A sentence about the rank that has ended, or None."""
        try:
            said = self._socket.recv(1 << 12, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return said.decode(errors="replace") or "the agent on this host is gone"


def departure(environ: Mapping[str, str]) -> Departure | None:
    """Return the departures that this host's agent reports. None if there is no agent or the descriptor was closed."""
    descriptor, _, inode = environ.get(DEPARTURES_FD, "").partition(":")
    try:
        if os.fstat(int(descriptor)).st_ino != int(inode):
            return None
        os.set_inheritable(int(descriptor), False)
    except (ValueError, OSError):
        return None
    return Departure(int(descriptor))
