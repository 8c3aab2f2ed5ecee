"""The descendants of this process: adopting orphans, and ending every descendant.

A process that daemonises leaves its parent, process group and session, but it is adopted by the nearest subreaper among
its ancestors. So a subreaper without children has no descendants at all, which a single `waitpid` that fails with
ECHILD proves.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_END_TIMEOUT = 5.0  # seconds of SIGKILL before giving up
_END_INTERVAL = 0.02
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def set_subreaper(enabled: bool = True) -> None:
    """Make this process adopt orphans among its descendants, or with `enabled=False`, stop that."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0)


def reap(pid: int = -1) -> tuple[int, int] | None:
    """Reap a child that has exited, without waiting.

    Returns:
        Its process id and its return code as in `subprocess` (negative = signal). (0, 0) if all children are alive.
        None if this process has no children.
    """
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return (found, os.waitstatus_to_exitcode(status)) if found else (0, 0)


def signal_all(signum: int, spare: Collection[int] = (), marker: str | None = None) -> list[int]:
    """Send a signal to every descendant of this process.

    Args:
        signum: the signal.
        spare: process ids of children that are spared, with their own descendants.
        marker: if given, only descendants with this `NAME=VALUE` in their environment are signalled.

    Returns:
        The process ids of all that were selected. They include zombies, unless a marker is given: a zombie has no
        environment.
    """
    import psutil  # costs 50 ms, and only a job that leaves something behind needs it

    meant: list[int] = []
    for child in psutil.Process().children():
        if child.pid in spare:
            continue
        for process in _family(child):
            if marker is None or has_marker(process, marker):
                meant.append(process.pid)
                with suppress(psutil.Error):
                    process.send_signal(signum)
    return meant


def children() -> set[int]:
    """Return the process ids of this thread's children, or an empty set if the kernel does not list them."""
    return _listed_children() or set()


def end_all(pids: Collection[int] = (), spare: Collection[int] = (), marker: str | None = None) -> bool:
    """SIGKILL every descendant of this process, a subreaper, repeatedly until none is left.

    Args:
        pids: process ids of descendants that may be exiting.
        spare, marker: as in `signal_all`.

    Returns:
        Whether none is left. False after five seconds.
    """
    give_up = time.monotonic() + _END_TIMEOUT
    seen = set(pids)
    while time.monotonic() < give_up:
        meant = signal_all(signal.SIGKILL, spare=spare, marker=marker)
        # A process that is just exiting has lost its environment, so it is not selected, and cannot be reaped yet.
        seen.update(meant)
        exiting = [pid for pid in seen if reap(pid) == (0, 0)]
        if not meant and not exiting:
            return True
        # SIGKILL takes time, and nothing notifies this loop of the end of adopted orphans.
        time.sleep(_END_INTERVAL)
    return False


def are_listed() -> bool:
    """Whether the kernel lists the children of a process."""
    return _listed_children() is not None


def has_orphans(children: Collection[int]) -> bool:
    """Whether this process, a subreaper, has children besides `children`, such as adopted orphans.

    Args:
        children: the process ids of known children.

    Returns:
        False if there are certainly none. A zombie that has not been reaped counts.
    """
    found = _listed_children()
    return found is None or any(pid not in children for pid in found)


def _listed_children() -> set[int] | None:
    """Return the process ids of this thread's children, or None if the kernel does not list them."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return None
    return {int(pid) for pid in text.split()}


def kill_marked(job: bytes, markers: Collection[bytes]) -> set[bytes]:
    """SIGKILL every accessible process whose initial environment has the marker of the job and one of `markers`.

    Args:
        job: the `NAME=VALUE` that all processes of the job have in their environment.
        markers: further markers. One of them is enough.

    Returns:
        The markers that were found. A zombie has no environment, and is not found.
    """
    found: set[bytes] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError), open(f"/proc/{entry.name}/environ", "rb") as file:  # it is gone, or another user's
            variables = file.read().split(b"\0")
            if job in variables and (marked := [marker for marker in markers if marker in variables]):
                found.update(marked)
                os.kill(int(entry.name), signal.SIGKILL)
    return found


def _family(process: psutil.Process) -> list[psutil.Process]:
    import psutil

    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def has_marker(process: psutil.Process, marker: str) -> bool:
    """Whether a process has this `NAME=VALUE` in its initial environment."""
    import psutil

    name, _, value = marker.partition("=")
    try:
        return process.environ().get(name) == value
    except psutil.Error:
        return False
