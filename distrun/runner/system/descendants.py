"""The processes below this one: adopting orphans, and ending every descendant.

A process that daemonises leaves its parent, process group and session, but not its line of descent: a subreaper adopts
it. That is why a subreaper without children has no descendant left anywhere: a single failed `waitpid` proves it.
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

_END_TIMEOUT = 5.0  # seconds of SIGKILL until we stop trying
_END_INTERVAL = 0.02
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def set_subreaper(enabled: bool = True) -> None:
    """Adopt the orphans among this process's descendants (or stop doing so)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0)


def reap(pid: int = -1) -> tuple[int, int] | None:
    """Collect a child that has exited, without waiting.

    Returns:
        Its process id and its return code as in `subprocess` (negative = signal); (0, 0) when all children live on;
        None when there is no child at all.
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
        spare: process ids of children that are left alone, their own descendants included.
        marker: when given, only those descendants that have this `NAME=VALUE` in their environment.

    Returns:
        The process ids of all that were meant. Zombies are among them, unless a marker is given: a zombie has no
        environment any more.
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
    """Return the process ids of this thread's children; none where the kernel does not tell."""
    return _listed_children() or set()


def end_all(pids: Collection[int] = (), spare: Collection[int] = (), marker: str | None = None) -> bool:
    """SIGKILL every descendant of this process, which is their subreaper, again and again until none is left.

    Args:
        pids: process ids that some of them had, which may be exiting.
        spare, marker: as for `signal_all`.

    Returns:
        Whether none is left; False after five seconds.
    """
    give_up = time.monotonic() + _END_TIMEOUT
    seen = set(pids)
    while time.monotonic() < give_up:
        meant = signal_all(signal.SIGKILL, spare=spare, marker=marker)
        # A process that is just exiting has no environment any more, so it is not meant, and cannot be collected yet.
        seen.update(meant)
        exiting = [pid for pid in seen if reap(pid) == (0, 0)]
        if not meant and not exiting:
            return True
        # SIGKILL takes its time, and there is no event for the end of adopted orphans.
        time.sleep(_END_INTERVAL)
    return False


def are_listed() -> bool:
    """Whether the kernel tells the children of a process."""
    return _listed_children() is not None


def has_orphans(children: Collection[int]) -> bool:
    """Whether this process, a subreaper, has children besides these: it adopts what its dead children have started.

    Args:
        children: process ids.

    Returns:
        False if there are none for certain. A zombie that was not waited for counts.
    """
    found = _listed_children()
    return found is None or any(pid not in children for pid in found)


def _listed_children() -> set[int] | None:
    """Return the process ids of this thread's children; None where the kernel does not tell."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return None
    return {int(pid) for pid in text.split()}


def kill_marked(job: bytes, markers: Collection[bytes]) -> set[bytes]:
    """SIGKILL every process of ours that was born with one of these markers, and with that of the job.

    Args:
        job: `NAME=VALUE` that all processes of the job have in their environment.
        markers: others, of which one is enough.

    Returns:
        The markers that were found. A zombie has none any more.
    """
    found: set[bytes] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError), open(f"/proc/{entry.name}/environ", "rb") as file:  # gone, or not ours
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
    """Whether a process was born with this `NAME=VALUE` in its environment."""
    import psutil

    name, _, value = marker.partition("=")
    try:
        return process.environ().get(name) == value
    except psutil.Error:
        return False
