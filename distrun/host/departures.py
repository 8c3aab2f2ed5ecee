"""A rank that has ended before it joined the others: how an agent tells the ranks of its host that wait for it in init.

All of them inherit one end of a pair of sockets, and read what is in it without taking it out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

DEPARTURES_FD = "DISTRUN_DEPARTURES_FD"
"""The variable with the descriptor and its inode, `7:123456`: a program between the agent and a rank may have closed
it, and something else may have its number."""


class Departures:
    """The agent's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = self._theirs.fileno()
        """The descriptor that the ranks have to inherit."""
        self.environ = {DEPARTURES_FD: f"{self.descriptor}:{os.fstat(self.descriptor).st_ino}"}
        """The variable that the ranks have to get."""

    def tell(self, sentence: bytes) -> None:
        """Tell the ranks which one has ended. They look at the first sentence only."""
        self._ours.setblocking(False)
        with suppress(BlockingIOError):
            self._ours.send(sentence)


class Departure:
    """The end of a rank, as an interruption of those that wait for it."""

    def __init__(self, descriptor: int) -> None:
        """Args: a descriptor to copy."""
        self._socket = socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stop_fd = self._socket.fileno()
        """Readable when a rank has ended so."""

    @property
    def interruption(self) -> str | None:
        """A sentence with the rank; None while there is none."""
        try:
            said = self._socket.recv(1 << 12, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return said.decode(errors="replace") or "the agent on this host is gone"


def departure(environ: Mapping[str, str]) -> Departure | None:
    """Return what the agent of this host tells of; None: there is no agent, or its descriptor has been closed."""
    descriptor, _, inode = environ.get(DEPARTURES_FD, "").partition(":")
    try:
        if os.fstat(int(descriptor)).st_ino != int(inode):
            return None
        os.set_inheritable(int(descriptor), False)
    except (ValueError, OSError):
        return None
    return Departure(int(descriptor))
