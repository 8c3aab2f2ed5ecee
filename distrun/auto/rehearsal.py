"""A rehearsal: one process makes the first steps of the script on whole batches before the ranks make them on parts.

A process that uses a GPU cannot be forked. So where there are GPUs the last rank is forked before anything asks for
one. The fork runs the script as one process would, silently and without writing files, up to the training loop. There
it waits for the ranks' first batches, makes the steps on them, leaves what it has found, and ends. The ranks wait for
that, and compare; see `distrun.auto.torch.trial`.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from distrun.errors import UsageError
from distrun.host.gpus import visible_gpus
from distrun.runtime.contract import LaunchContract

_PATIENCE = 180.0  # seconds that the first steps may take


@dataclass(frozen=True)
class Beginning:
    """The facts that a rehearsal begins with."""

    seed: int
    gpu: int | None
    """The number of the GPU that it shares with the last rank."""


class Rehearsal:
    """A rehearsal, as the rank sees it that was forked."""

    def __init__(self, process: int, connection: Connection) -> None:
        self._process, self._connection = process, connection

    def begin(self, beginning: Beginning) -> None:
        """Have the script run up to its training loop."""
        try:
            self._connection.send(beginning)
        except OSError:
            pass  # it has ended: `found` will say so

    def found(self, batches: bytes) -> bytes:
        """Hand over the first batches, and return the findings at the end of the process; empty: it has none."""
        try:
            self._connection.send_bytes(batches)
            return self._connection.recv_bytes() if self._connection.poll(_PATIENCE) else b""
        except (OSError, EOFError):
            return b""
        finally:
            self.end()

    def end(self) -> None:
        """End the process if it has not ended. Memory of the GPU that it has used is free after this."""
        if self._process:
            self._connection.close()
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


class RehearsingProcess:
    """A rehearsal, as the process sees it that makes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.gpu: int | None = None
        """The number of the GPU that it works on; None: there is none, or it has not begun."""

    def beginning(self) -> Beginning:
        """Wait until the rank has joined its job; the process ends if there is nothing to rehearse."""
        try:
            beginning: Beginning = self._connection.recv()  # from the process that forked this one
        except EOFError:
            os._exit(0)
        self.gpu = beginning.gpu
        return beginning

    def batches(self) -> bytes:
        """Wait for the first batches, and return them; the process ends if there are none."""
        try:
            return self._connection.recv_bytes()
        except EOFError:
            os._exit(0)

    def leave(self, found: bytes) -> None:
        """Hand over what was found."""
        self._connection.send_bytes(found)


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
    process = os.fork()
    if process:
        others.close()
        return Rehearsal(process, mine)
    mine.close()
    return RehearsingProcess(others)
