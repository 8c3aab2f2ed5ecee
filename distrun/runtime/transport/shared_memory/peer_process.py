"""The process of a local peer, by its pidfd: whether it is stopped, and how it ended."""

from __future__ import annotations

import fcntl
import signal
import struct
import time
from pathlib import Path

# ioctl PIDFD_GET_INFO of Linux 6.13. Since 6.15 it returns the exit code, once the parent has reaped the process.
_GET_INFO = 0xC040FF0B
_WANT_EXIT = 1 << 3
_INFO = struct.Struct("<QQIIIIIIIIIIIi")

_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in uninterruptible sleep", "Z": "dead"}


def condition(pidfd: int) -> str | None:
    """Return why a process cannot answer ("stopped by a signal"), or None if it runs or sleeps as usual."""
    try:
        fdinfo = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        pid = next(line.split()[1] for line in fdinfo.splitlines() if line.startswith("Pid:"))
        # "123 (python) T 1 ...": the name may contain blanks and parentheses
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, StopIteration, IndexError):
        return None
    return _STATES.get(state)


def ending(pidfd: int, timeout: float = 0.3) -> str:
    """Return how a process has ended: "was killed by SIGKILL", "exited with status 1", or just "is gone".

    Args:
        pidfd: the pidfd of a process that has ended.
        timeout: seconds to wait for its parent to reap it. The kernel does not return the status before.
    """
    deadline = time.monotonic() + timeout
    while True:
        status = _exit_status(pidfd)
        if status is not None or time.monotonic() > deadline:
            break
        time.sleep(0.002)  # there is no event for the reaping
    if status is None:
        return "is gone"
    if status & 0x7F:
        number = status & 0x7F
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with status {status >> 8 & 0xFF}"


def _exit_status(pidfd: int) -> int | None:
    """Return the wait status, or None if the kernel is too old or the parent has not reaped the process yet."""
    info = bytearray(_INFO.pack(_WANT_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(bytes(info))
    return status if mask & _WANT_EXIT else None
