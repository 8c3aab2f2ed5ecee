"""Forks of this process, which end with it and return a result through shared memory."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Make the kernel SIGKILL this process, which has just been forked, when the thread that forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl
        os.kill(os.getpid(), signal.SIGKILL)


class Fork:
    """A fork of this process, in its own process group. Both processes have this object."""

    def __init__(self) -> None:
        self._result = os.memfd_create("distrun-fork")
        parent = os.getpid()
        self._pid = os.fork()
        self.is_here = not self._pid
        """Whether this process is the fork."""
        with suppress(OSError):  # the other process was faster
            os.setpgid(self._pid, self._pid)
        if self.is_here:
            die_with_parent(parent)

    def leave(self, result: bytes) -> None:
        """In the fork: store its result. It must then end with status 0."""
        with open(self._result, "wb", closefd=False) as file:
            file.write(result)

    def result(self, timeout: float) -> bytes:
        """Return the fork's result after it has ended, or b"" if it failed. After `timeout` seconds, kill it."""
        pidfd = os.pidfd_open(self._pid)
        try:
            select.select([pidfd], [], [], timeout)
        finally:
            os.close(pidfd)
        with open(os.dup(self._result), "rb") as file:
            file.seek(0)
            result = file.read()
        return result if self.end() == 0 else b""

    def end(self) -> int:
        """Kill the fork and the processes that it has started, unless this was done before. Return its wait status.

        GPU memory that they used is free afterwards.
        """
        if not self._pid:
            return -1
        status = -1
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        os.close(self._result)
        return status
