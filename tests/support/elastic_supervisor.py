"""A launcher of elastic jobs in a hundred lines, for tests of what ranks do: one host, no agent, policy by hand.

The tests of the launcher itself start real jobs with `distrun --elastic`.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distrun.runtime.contract import LaunchContract
from distrun.runtime.elastic import messages
from distrun.runtime.elastic.messages import Assignment, Message, Prepare

MAX_MESSAGE = 1 << 17
DEADLINE = 60.0


@dataclass(eq=False)
class Process:
    """One process of the job, with our end of its control channel."""

    popen: subprocess.Popen[bytes]
    control: socket.socket
    log: Path
    said: list[Message] = field(default_factory=list)

    def output(self) -> str:
        """All that it has written so far."""
        return self.log.read_text(errors="replace")


class Supervisor:
    """Starts processes, and makes them generations. Use it in a `with`: nothing is left behind."""

    def __init__(self, command: Sequence[str], folder: Path, environ: dict[str, str] | None = None) -> None:
        """Args: the command of every process; a folder for their output; variables on top of ours."""
        self._command = list(command)
        self._folder = folder
        self._environ = {**os.environ, **(environ or {})}
        self._job, self._key = secrets.token_hex(16), secrets.token_hex(32)
        self.generation = 0
        self.members: list[Process] = []
        self.processes: list[Process] = []

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.popen.kill()
            process.popen.wait()
            process.control.close()

    def contract(self, rank: int, size: int, generation: int) -> dict[str, str]:
        """Return the variables of a rank."""
        return LaunchContract(
            job=self._job,
            key=self._key,
            rank=rank,
            size=size,
            local_rank=rank,
            local_size=size,
            cross_rank=0,
            cross_size=1,
            hostname="localhost",
            master_addr="127.0.0.1",
            master_port=29400,
            generation=generation,
            restart=max(0, generation - 1),
        ).to_environ()

    def start(self, rank: int, size: int, generation: int = 0) -> Process:
        """Start a process; generation 0 is a newcomer."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = self._folder / f"process{len(self.processes)}.log"
        with theirs, log.open("wb") as output:
            popen = subprocess.Popen(
                self._command,
                env={
                    **self._environ,
                    **self.contract(rank, size, generation),
                    messages.CONTROL_FD: str(theirs.fileno()),
                    "OMP_NUM_THREADS": "1",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        self.processes.append(process := Process(popen, ours, log))
        return process

    def begin(self, size: int) -> None:
        """Start the first generation."""
        self.generation = 1
        self.members = [self.start(rank, size, 1) for rank in range(size)]

    def assign(self, members: Sequence[Process], reason: str = "a test says so") -> None:
        """Make the next generation of processes, in rank order."""
        self.generation += 1
        self.members = list(members)
        for rank, process in enumerate(members):
            environ = self.contract(rank, len(members), self.generation)
            process.control.send(messages.encode(Assignment(self.generation, environ, reason)))

    def prepare(self, reason: str = "a test says so") -> None:
        """Have the members leave at their next step boundary."""
        for process in self.members:
            process.control.send(messages.encode(Prepare(self.generation, reason)))

    def kill(self, rank: int) -> Process:
        """Kill a member, and wait for its end."""
        process = self.members.pop(rank)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        return process

    def await_message(self, process: Process, *kinds: type) -> Message:
        """Return the next message of one of these kinds that a process sends, or has sent since the last call."""
        deadline = time.monotonic() + DEADLINE
        while True:
            while process.said:
                message = process.said.pop(0)
                if isinstance(message, kinds):
                    return message
            if not select.select([process.control], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no {kinds} within {DEADLINE} s; it wrote:\n{process.output()}")
            data = process.control.recv(MAX_MESSAGE)
            if not data:
                raise AssertionError(f"it ended without {kinds}; it wrote:\n{process.output()}")
            process.said.append(messages.decode(data))

    def await_exits(self) -> list[int]:
        """Wait until all members have exited; return their statuses."""
        return [process.popen.wait(DEADLINE) for process in self.members]


def python(script: Path | str, *arguments: str) -> list[str]:
    """Return the command that runs a script with this Python."""
    return [sys.executable, str(script), *arguments]
