"""A rehearsal: one process makes the first step of the script on a whole batch before the ranks make it on parts.

A process that uses a GPU cannot be forked. So where there are GPUs the last rank is forked before anything asks for
one. The fork runs the script as one process would, silently and without writing files, up to the training loop. There
it waits for the ranks' first batch, makes the step on it, leaves what it has found, and ends. The ranks wait for that,
and compare; see `distrun.auto.torch.trial`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from distrun.errors import UsageError
from distrun.host.gpus import visible_gpus
from distrun.runtime.contract import LaunchContract

_PATIENCE = 180.0  # seconds until the step must have been made
_PR_SET_PDEATHSIG = 1  # of prctl: the signal when the process's parent has ended


@dataclass(frozen=True)
class Beginning:
    """The facts that a rehearsal begins with."""

    seed: int
    gpu: int | None
    """The number of the GPU that it shares with the last rank."""


class Rehearsal:
    """A rehearsal, as the rank sees it that was forked."""

    def __init__(self, process: int, connection: Connection, given: int, found: int) -> None:
        """`given` and `found` are descriptors of files in memory that both processes have."""
        self._process, self._connection, self._given, self._found = process, connection, given, found

    def begin(self, beginning: Beginning) -> None:
        """Have the script run up to its training loop."""
        with suppress(OSError):  # it has ended: `found` will say so
            self._connection.send(beginning)

    def found(self, given: bytes) -> bytes:
        """Hand something over, wait for the end of the process, and return its findings; empty: it has none."""
        with open(self._given, "wb", closefd=False) as file:
            file.write(given)
        with suppress(OSError):
            self._connection.send_bytes(b"given")
        pidfd = os.pidfd_open(self._process)
        try:
            select.select([pidfd], [], [], _PATIENCE)
        finally:
            os.close(pidfd)
        found = _content(self._found)
        return found if self.end() else b""

    def end(self) -> bool:
        """End the process and those that it has started, and return whether it had come to its end.

        Memory of the GPU that it has used is free after this.
        """
        if not self._process:
            return False
        status = -1
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):
            _, status = os.waitpid(self._process, 0)
        self._process = 0
        self._connection.close()
        os.close(self._given)
        os.close(self._found)
        return status == 0


class RehearsingProcess:
    """A rehearsal, as the process sees it that makes it."""

    def __init__(self, connection: Connection, given: int, found: int) -> None:
        self._connection, self._given, self._found = connection, given, found
        self.gpu: int | None = None
        """The number of the GPU that it works on; None: there is none, or it has not begun."""

    def beginning(self) -> Beginning:
        """Wait until the rank has joined its job; the process ends if there is nothing to rehearse."""
        if _is_exclusive():
            os._exit(1)
        try:
            beginning: Beginning = self._connection.recv()  # from the process that forked this one
        except EOFError:
            os._exit(1)
        self.gpu = beginning.gpu
        return beginning

    def given(self) -> bytes:
        """Wait for what the rank hands over, and return it; the process ends if there is nothing."""
        try:
            self._connection.recv_bytes()
        except EOFError:
            os._exit(1)
        return _content(self._given)

    def leave(self, found: bytes) -> None:
        """Leave what was found, before the process ends with status 0."""
        with open(self._found, "wb", closefd=False) as file:
            file.write(found)


def is_needed() -> bool:
    """Whether this process is the last rank of a job, and may use a GPU."""
    try:
        contract = LaunchContract.from_environ(os.environ)
    except UsageError:
        return False  # it is started by mpirun or srun, which tell us its rank when it joins the job
    return contract.rank == contract.size - 1 > 0 and visible_gpus(os.environ) > 0


def fork() -> Rehearsal | RehearsingProcess:
    """Fork this process, which must not have asked for a GPU yet; return the rehearsal, and in the fork its side."""
    mine, others = Pipe()
    files = os.memfd_create("distrun-given"), os.memfd_create("distrun-found")
    process = os.fork()
    if process:
        others.close()
        with suppress(OSError):  # the fork has done so itself
            os.setpgid(process, process)
        return Rehearsal(process, mine, *files)
    mine.close()
    os.setpgid(0, 0)  # so that it ends together with what the script starts
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return RehearsingProcess(others, *files)


def _is_exclusive() -> bool:
    """Whether a GPU lets only one process use it, as far as the driver's program tells."""
    command = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
    try:
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(mode.strip() not in ("", "Default") for mode in told.splitlines())


def _content(descriptor: int) -> bytes:
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()
