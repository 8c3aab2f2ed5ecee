"""A running `distrun`, whose output can be waited for and whose descendants can all be found."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
from shell import MARK, kill_all, marked

from distrun.runner.system import descendants

DEADLINE = 60.0  # seconds; far more than anything takes, so that a busy machine fails no test


class Stream:
    """Collects a pipe in a thread, so that tests can wait for what appears on it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.data = b""
        self.has_ended = False
        self._pipe = pipe
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        pieces = bytearray()
        while piece := os.read(self._pipe.fileno(), 1 << 20):
            pieces += piece
            with self._changed:
                self.data = bytes(pieces)
                self._changed.notify_all()
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def until(self, holds: Callable[[], object], seconds: float = DEADLINE) -> bool:
        """Whether something holds of what was written, or does so within some seconds."""
        with self._changed:
            return bool(self._changed.wait_for(holds, seconds))

    def has(self, text: bytes | str, seconds: float, times: int = 1) -> bool:
        """Whether a text has appeared that many times, or does so within some seconds."""
        wanted = text.encode() if isinstance(text, str) else text
        return self.until(lambda: self.data.count(wanted) >= times, seconds)

    def wait_for(self, text: bytes | str, times: int = 1) -> bytes:
        """Wait until the text has appeared that many times. Return all that was written until then."""
        assert self.has(text, DEADLINE, times), f"{text!r} did not appear {times} times in {self.data[-5000:]!r}"
        return self.data

    def wait_for_match(self, pattern: str) -> None:
        """Wait until a regular expression matches what was written, within a line."""
        assert self.until(lambda: re.search(pattern, self.text)), f"{pattern!r} matches nothing in {self.text[-5000:]}"

    def close(self) -> str:
        """Wait for the end of the pipe. Return everything that was written."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "somebody still holds the pipe"
        self._pipe.close()
        return self.text


class Distrun:
    """A running `distrun` and all the processes below it, known by a variable in their environment."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        tmp: Path,
        environ: dict[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        collect: bool = True,
        before_exec: Callable[[], object] | None = None,
    ) -> None:
        """`collect=False` leaves its stdout to the test; `before_exec` is called in the new process before exec."""
        self._marker = uuid.uuid4().hex
        self._tmp = tmp
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distrun.runner", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before_exec,
            env={**os.environ, "TMPDIR": str(tmp), MARK: self._marker, **environ},
        )
        self.started = time.monotonic()
        if collect:
            self.stdout = Stream(self.process.stdout)
        self.stderr = Stream(self.process.stderr)

    def wait(self, seconds: float = DEADLINE) -> int:
        """Wait for its end, and for the end of everything it has printed; returns the exit status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._progress(seconds)) from None
        self.seconds = time.monotonic() - self.started
        if hasattr(self, "stdout"):
            self.stdout.close()
        self.stderr.close()
        return status

    def ended(self, status: int, seconds: float = DEADLINE) -> bytes:
        """Wait for its end with this exit status; return what it has written to stderr."""
        assert self.wait(seconds) == status, self.stderr.text
        return self.stderr.data

    def _progress(self, seconds: float) -> str:
        """Return what is known of a job that does not end.

        Its processes are ended; Python's tell what their threads do if PYTHONFAULTHANDLER is set in their environment.
        """
        processes = [f"{process.pid} {process.status()} {shlex.join(process.cmdline())}" for process in self.family()]
        for process in reversed(self.family()):
            process.send_signal(signal.SIGABRT)
        psutil.wait_procs(self.family(), timeout=5)
        said = [stream.text for stream in vars(self).values() if isinstance(stream, Stream)]
        return "\n".join([f"the job has not ended within {seconds:.0f} s", *processes, *said])

    def family(self) -> list[psutil.Process]:
        """Every living process that was born below this launch, itself included."""
        return marked(self._marker)

    def agent(self) -> psutil.Process:
        """The process of the agent."""
        (agent,) = (child for child in self.family() if child.cmdline()[-1] == "distrun.runner.agent")
        return agent

    def assert_gone(self) -> None:
        """Nothing is left: no process (and so no port), no file in the temporary directory, no shared memory."""
        assert self.family() == []
        assert list(self._tmp.iterdir()) == []
        await_gone(shared_memory())

    def end(self) -> None:
        """Leave nothing behind after a failed test."""
        kill_all(self.family())
        self.process.wait(DEADLINE)
        while descendants.reap() not in (None, (0, 0)):  # orphans, where a test has made this process a subreaper
            pass


def shared_memory() -> set[str]:
    """Return all names in this machine's shared memory that are distrun's."""
    return {name for name in os.listdir("/dev/shm") if "distrun" in name}


def await_gone(names: set[str]) -> None:
    """Wait until names in shared memory are gone: other jobs of this machine may be at their rendezvous just now."""
    deadline = time.monotonic() + DEADLINE
    for name in names:
        while name in shared_memory():
            assert time.monotonic() < deadline, f"/dev/shm/{name} is left"
            time.sleep(0.01)


def python_command(code: str) -> list[str]:
    """Return the command of a rank that executes some Python."""
    return [sys.executable, "-c", code]


@contextmanager
def launches(
    directory: Path, hosts: Collection[Any] | None = None, /, **usual: str
) -> Iterator[Callable[..., Distrun]]:
    """Give a function that starts `distrun` with some arguments; at the end nothing is left of what it has started.

    Its keywords are the options of `Distrun`, and variables besides the usual ones.

    Args:
        directory: a folder of the test, for temporary files
        hosts: where launches that have ended must have left nothing, besides this machine. None = it is not checked
        usual: variables of each launch
    """
    started: list[Distrun] = []
    tmp = directory / "tmp"
    tmp.mkdir()

    def start(*arguments: str, **given: Any) -> Distrun:
        options = {name: given.pop(name) for name in {"stdin", "collect", "before_exec"} & given.keys()}
        started.append(Distrun(arguments, tmp, usual | given, **options))
        return started[-1]

    yield start
    try:
        if hosts is not None and all(launch.process.returncode is not None for launch in started):
            for launch in started:
                if launch.process.returncode == -signal.SIGKILL:
                    psutil.wait_procs(launch.family(), DEADLINE)
                launch.assert_gone()
            for host in hosts:
                host.assert_gone()
    finally:
        for launch in started:
            launch.end()
