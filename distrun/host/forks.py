"""Forks of this process: they end when it does, and leave a result in memory."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends; it has just been forked."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew our wish
        os.kill(os.getpid(), signal.SIGKILL)


class Fork:
    """A fork of this process, in a process group of its own. Both processes have this object."""

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
        """Leave a result, in the fork, before it ends with status 0."""
        with open(self._result, "wb", closefd=False) as file:
            file.write(result)

    def result(self, timeout: float) -> bytes:
        """Wait for the fork to end, end it after `timeout` seconds, and return its result; empty: it has none."""
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
        """End the fork and the processes that it has started, if that was not done before; return its status.

        What it has used of a GPU's memory is free after this.
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
