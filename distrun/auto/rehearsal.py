"""A rehearsal: one process makes the first step of the script on a whole batch before the ranks make it on parts.

A process that uses a GPU cannot be forked. So where there are GPUs, the last rank is forked before anything uses one.
The fork runs the script as a single process would, silently and without writing files, up to the training loop. There
it waits for the ranks' first batch, makes the step on it, hands over its findings, and ends. The ranks wait for these,
and compare: see `distrun.auto.torch.trial`.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

from distrun.contract.launch import LaunchContract
from distrun.errors import UsageError
from distrun.host.forks import Fork
from distrun.host.gpus import visible_gpus

_TIMEOUT = 180.0  # seconds from the batch to the findings


class Rehearsal:
    """The rank's side of a rehearsal, in the parent process."""

    def __init__(self, fork: Fork, connection: Connection, given: int) -> None:
        """`given` is the descriptor of a file in memory that both processes share."""
        self._fork, self._connection, self._given = fork, connection, given

    def begin(self, seed: int, gpu: int | None) -> None:
        """Let the rehearsal run the script up to its training loop. `gpu` is the index of the GPU that both share."""
        with suppress(OSError):  # it has ended, and `found` will return nothing
            self._connection.send((seed, gpu))

    def found(self, given: bytes) -> bytes:
        """Hand over `given`, wait for the process to end, and return its findings, or empty if it has none."""
        with open(self._given, "wb", closefd=False) as file:
            file.write(given)
        with suppress(OSError):
            self._connection.send_bytes(b"given")
        return self._fork.result(_TIMEOUT)

    def end(self) -> None:
        """End the process, unless it has ended."""
        self._fork.end()
        if not self._connection.closed:
            self._connection.close()
            os.close(self._given)


class RehearsingProcess:
    """The forked process's side of a rehearsal."""

    def __init__(self, fork: Fork, connection: Connection, given: int) -> None:
        """`given` is as in `Rehearsal`."""
        self._connection, self._given = connection, given
        self.leave = fork.leave
        self.gpu: int | None = None
        """The index of the GPU that it works on, or None without one, or before `seed`."""

    def seed(self) -> int:
        """Wait until the rank has joined its job, and return its seed. End the process if nothing is rehearsed."""
        if _is_exclusive():
            os._exit(1)
        try:
            seed, self.gpu = self._connection.recv()  # from the process that forked this one
        except EOFError:
            os._exit(1)
        return int(seed)

    def given(self) -> bytes:
        """Wait for the data that the rank hands over. End the process if there is none."""
        try:
            self._connection.recv_bytes()
        except EOFError:
            os._exit(1)
        with open(os.dup(self._given), "rb") as file:
            file.seek(0)
            return file.read()


def is_needed() -> bool:
    """Whether this process is the last rank of a job, and may use a GPU."""
    try:
        contract = LaunchContract.from_environ(os.environ)
    except UsageError:
        return False  # mpirun or srun has started it, and its rank is known only when it joins the job
    return contract.rank == contract.size - 1 > 0 and visible_gpus(os.environ) > 0


def fork() -> Rehearsal | RehearsingProcess:
    """Fork this process, which must not have used a GPU. Return, in each process, its side of the rehearsal."""
    mine, others = Pipe()
    given = os.memfd_create("distrun-given")
    forked = Fork()
    if not forked.is_here:
        others.close()
        return Rehearsal(forked, mine, given)
    mine.close()
    return RehearsingProcess(forked, others, given)


def _is_exclusive() -> bool:
    """Whether nvidia-smi reports a GPU that only one process may use."""
    command = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
    try:
        output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(mode.strip() not in ("", "Default") for mode in output.splitlines())
