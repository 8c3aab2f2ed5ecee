"""Jobs of ranks that stay up: starting ranks and importing their libraries takes longer than most rank programs do.

A job is started when the first test asks for it, runs one program after another, and ends with the session. When a
program fails on any rank the job is ended, and the next test that asks gets a new one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

RANK = Path(__file__).with_name("warm_rank.py")
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test

Command = tuple[Sequence[str], Mapping[str, str]]
"""A command line, after which Python's own follows, and its environment."""


class WarmRanks:
    """A running job of `size` ranks."""

    def __init__(self, commands: Sequence[Command], size: int) -> None:
        """Start the job.

        Args:
            commands: one for a launcher, or one for each rank; `[sys.executable, RANK, address]` is added to each.
            size: the number of ranks, all of which connect to this process.
        """
        self.is_alive = True
        self._undo = contextlib.ExitStack()
        folder = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="warm-"))
        self._log: IO[str] = self._undo.enter_context((Path(folder) / "log").open("w+"))
        self._processes: list[subprocess.Popen[str]] = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/ranks")
            listener.listen(size)
            listener.settimeout(DEADLINE)
            for command, environ in commands:
                whole = [*command, sys.executable, str(RANK), f"{folder}/ranks"]
                self._processes.append(
                    subprocess.Popen(
                        whole, env=dict(environ), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
                    )
                )
            try:
                self._connections = [self._accept(listener) for _ in range(size)]
            except TimeoutError:
                raise AssertionError(self._end(f"only some of {size} ranks have started")) from None

    def _accept(self, listener: socket.socket) -> socket.socket:
        connection = self._undo.enter_context(listener.accept()[0])
        connection.settimeout(DEADLINE)
        return connection

    def run(self, program: Path, *arguments: str, **environ: str) -> str:
        """Run a program on all ranks to its successful end; what they printed."""
        order = json.dumps({"program": str(program), "arguments": arguments, "environ": environ}) + "\n"
        try:
            for connection in self._connections:
                connection.sendall(order.encode())
            lines = [connection.makefile().readline() for connection in self._connections]
        except (TimeoutError, OSError) as error:
            raise AssertionError(self._end(f"{program.name}: {error!r}")) from None
        answers = [json.loads(line) if line else {"printed": "", "error": "the rank has ended"} for line in lines]
        printed = "".join(answer["printed"] for answer in answers)
        if any(answer["error"] for answer in answers):
            errors = "\n".join(answer["error"] for answer in answers if answer["error"])
            raise AssertionError(self._end(f"{program.name}:\n{errors[-8000:]}\n{printed[-5000:]}"))
        return printed

    def _end(self, reason: str) -> str:
        """Kill the job; the reason and the last words of the launcher or the ranks."""
        self.is_alive = False
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.seek(0)
        words = self._log.read()[-5000:]
        self._undo.close()
        return f"{reason}\n{words}"

    def close(self) -> None:
        """End the job, which leaves nothing behind and has nothing to complain of."""
        if not self.is_alive:
            return
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)
        statuses = [process.wait(60.0) for process in self._processes]
        reason = self._end("") if any(statuses) else ""
        assert not any(statuses), f"exit statuses {statuses}: {reason}"
        self.is_alive = False
        self._undo.close()


class WarmJobs:
    """All the jobs of a session that stay up, by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, WarmRanks] = {}

    def get(self, name: str, start: Callable[[], WarmRanks]) -> WarmRanks:
        """The job of that name; `start` starts it if it is not running."""
        if name not in self._jobs or not self._jobs[name].is_alive:
            self._jobs[name] = start()
        return self._jobs[name]

    def close(self) -> None:
        """End them all; the first complaint is raised when all have ended."""
        with contextlib.ExitStack() as stack:
            for job in self._jobs.values():
                stack.callback(job.close)
