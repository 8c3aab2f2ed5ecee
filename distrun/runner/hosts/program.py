"""Running a module of distrun, such as the agent or the doctor's probe, with its standard streams.

On this machine the module runs in a child process (`LocalProgram`), on another host in an SSH channel
(`ssh_program.SshProgram`) or in a job step of Slurm (`job_steps.JobStep`). To callers all of them are a `Program`.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from distrun.host.limits import hint_for
from distrun.runner.protocol.exits import NOT_FOUND
from distrun.runner.protocol.handshake import HostError, NoPythonError, explain_failed_start, find_first_frame

AGENT = "distrun.runner.agent"
SWEEP = "distrun.runner.agent.cleanup.sweep"
PROBE = "distrun.tools.doctor.probe"

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_EXIT_TIMEOUT = 10.0  # seconds from the end of a process's stdout to its exit


class Program(Protocol):
    """A running module of distrun: the interface that each way of running it implements."""

    python: str
    """The Python that runs it, for errors."""

    def write(self, data: bytes) -> None:
        """Send all of the data to its stdin. Raises OSError when its stdin is closed."""

    def end_input(self) -> None:
        """Close its stdin."""

    def read(self, timeout: float | None) -> bytes:
        """Return the next bytes from its stdout, none at the end.

        Raises:
            TimeoutError: nothing came within `timeout` seconds. None waits for ever.
            OSError: the connection is lost.
        """

    def wait(self) -> int:
        """Wait for its exit, which must be near. Return the exit status, negative when there is none."""

    def explain_start(self, output: bytes) -> str:
        """Return why it ended before its first frame, with the remedy. `output` is what it wrote to stdout."""

    def kill(self) -> None:
        """End it at once, as far as that is possible from here."""

    def close(self) -> None:
        """Close its streams."""


class ChildProgram:
    """A child process in a session of its own, so that Ctrl-C on the terminal does not reach it, with its streams."""

    def __init__(self, command: list[str], **options: Any) -> None:
        """Start `command`, with `options` as for `subprocess.Popen`. Raises OSError."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, **options)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def write(self, data: bytes) -> None:
        """Send all of the data to its stdin."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._stdin.fileno(), rest) :]

    def end_input(self) -> None:
        """Close its stdin."""
        with suppress(OSError):
            self._stdin.close()

    def read(self, timeout: float | None) -> bytes:
        """Return the next bytes from its stdout."""
        if timeout is not None:
            poll = select.poll()  # unlike select, without a limit on the descriptor's number
            poll.register(self._stdout, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise TimeoutError
        return os.read(self._stdout.fileno(), 1 << 20)

    def close(self) -> None:
        """Close its streams. May be called twice."""
        for pipe in (self._stdin, self._stdout):
            with suppress(OSError):
                pipe.close()


class LocalProgram(ChildProgram):
    """A module of distrun in a child process. See `Program` for the interface."""

    python = sys.executable

    def __init__(self, module: str, stderr: int | None = None) -> None:
        """Start `module`. Raises HostError: this Python cannot be started.

        Args:
            module: the module's name.
            stderr: where its stderr goes, as for `subprocess.Popen`. None = to this process's.
        """
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        try:
            # `-m` puts the current directory first on sys.path: distrun is found where it was found here, and a
            # select.py in the user's directory is not.
            super().__init__([sys.executable, "-m", module], cwd=_PACKAGE_ROOT, env=environ, stderr=stderr)
        except OSError as error:
            raise HostError(f"Python {sys.executable!r} cannot be started: {error.strerror}{hint_for(error)}") from None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors to write to its stdin and to read from its stdout, until it is closed."""
        return self._stdin.fileno(), self._stdout.fileno()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def wait(self) -> int:
        """Wait for its exit. Kill it after a timeout."""
        try:
            return self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def explain_start(self, output: bytes) -> str:
        """Return the reason why it ended before its first frame."""
        return explain_failed_start(self.wait(), output.decode(errors="replace"), self.python)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.kill()


def first_frame(program: Program, deadline: float, stream: bytes = b"") -> tuple[bytes, bytes]:
    """Wait for a program's first frame, which may follow output of a login shell.

    Args:
        program: a program that has just been started.
        deadline: when to give up, as `time.monotonic()`.
        stream: what it has written already.

    Returns:
        The frame's payload, and the bytes after the frame.

    Raises:
        HostError: the frame is late, the connection is lost, or the program could not be started.
        NoPythonError: its Python does not exist.
    """
    while (found := find_first_frame(stream)) is None:
        try:
            data = program.read(max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            wrote = f"; it wrote {stream[-200:]!r}" if stream else ""
            raise HostError(f"nothing was heard from {program.python} in time{wrote}") from None
        except OSError as error:
            raise HostError(f"the connection was lost: {error}") from None
        if not data:
            reason = program.explain_start(stream)
            raise (NoPythonError if program.wait() == NOT_FOUND else HostError)(reason)
        stream += data
    return found


def remote_command(python: str, module: str, code: str) -> list[str]:
    """Return the command that runs a module of distrun on another host.

    The current directory is not searched for modules. The module's name comes last, where lists of processes show it.
    `code` is the code of an `Opening` of `runner.shipping.delivery`.
    """
    return [python, "-c", code, module]
