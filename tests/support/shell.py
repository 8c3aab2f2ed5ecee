"""A real shell on a terminal of its own, for tests of job control: what is typed and shown, what it has started."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

DEADLINE = 60.0  # seconds; far more than anything takes, so that a busy machine fails no test
MARK = "TEST_OF_DISTRUN"  # an environment variable by which the processes of a test are found


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that tells nobody when it does."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.01)


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # just now
        return False


def marked(mark: str, word: str = "", place: slice = slice(None)) -> list[psutil.Process]:
    """Return the living processes that have a mark in their environment, and a word at a place of their command."""
    found = []
    for process in psutil.process_iter():
        try:
            is_meant = process.environ().get(MARK) == mark and (not word or word in process.cmdline()[place])
            if is_meant and lives(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, of which some may end by themselves meanwhile."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def are_stopped(processes: list[psutil.Process]) -> bool:
    """Whether SIGSTOP or its like has stopped every process."""
    return all(process.status() == psutil.STATUS_STOPPED for process in processes)


class Shell:
    """A bash on a terminal, with job control, and all that it has started."""

    def __init__(self, **environ: str) -> None:
        """Args: variables for what it starts."""
        self._marker = uuid.uuid4().hex
        self._master, terminal = pty.openpty()
        environ = {
            **os.environ,
            MARK: self._marker,
            "PS1": "$ ",
            "TERM": "dumb",
            "HISTFILE": "",
            "NO_COLOR": "1",
            **environ,
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.shown = b""
        self._changed = threading.Condition()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                with self._changed:
                    self.shown += data
                    self._changed.notify_all()
        except OSError:  # the terminal is closed
            pass

    def type(self, text: str) -> int:
        """Type something; returns how much had been shown before."""
        with self._changed:
            before = len(self.shown)
        os.write(self._master, text.encode())
        return before

    def wait_for(self, text: str, after: int = 0) -> int:
        """Wait until the text is shown; returns where it ends."""
        with self._changed:
            if not self._changed.wait_for(lambda: text.encode() in self.shown[after:], DEADLINE):
                raise AssertionError(f"{text!r} was not shown: {self.shown[after:][-2000:]!r}")
            return self.shown.index(text.encode(), after) + len(text)

    def until(self, holds: Callable[[], object], seconds: float = DEADLINE) -> bool:
        """Whether something holds of what is shown, or does so within some seconds."""
        with self._changed:
            return bool(self._changed.wait_for(holds, seconds))

    def ask(self, text: str, answer: str) -> int:
        """Type something, and wait until the answer is shown; returns where it ends."""
        return self.wait_for(answer, self.type(text))

    def ranks(self) -> list[psutil.Process]:
        """Return those that execute Python given on their command line."""
        return marked(self._marker, "-c", slice(1, 2))

    def family(self, word: str) -> list[psutil.Process]:
        """Return the processes below the shell that have a word on their command line."""
        return marked(self._marker, word)

    def close(self) -> None:
        """Leave nothing behind."""
        self._bash.kill()
        self._bash.wait()
        for word in ("distrun.runner", "distrun.runner.agent", "-c"):
            kill_all(self.family(word))
        os.close(self._master)


def assert_stops_end_nothing(shell: Shell, ranks: Callable[[], list[psutil.Process]], keepalive: float) -> None:
    """Stop a job whose ranks print steps for longer than its keepalive, twice, let it go on, and interrupt it."""
    for _ in range(2):
        shell.ask("\x1a", "Stopped")
        stopped = ranks()
        wait_until(lambda: are_stopped(ranks()))
        time.sleep(2.5 * keepalive)  # there is nothing to wait for
        before = shell.type("fg\n")
        for rank in range(len(stopped)):
            shell.wait_for(f"[{rank}] step", before)
        time.sleep(1.5 * keepalive)  # the keepalives are there again
        assert ranks() == stopped
    shell.ask("\x03", "$ ")
    shell.ask("echo status $?\n", "status 130")
