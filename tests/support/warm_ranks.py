"""Jobs of ranks that stay up: starting ranks and importing their libraries takes longer than most rank programs do.

Such ranks execute warm_rank.py, and run one program after another. When a program fails on any rank, the job is over:
`WarmJobs` starts a new one for the next test that asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from distrun.host.abstract_sockets import peer_process

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
AFTER_AN_ERROR = 15.0  # seconds that ranks have to end the program that failed on another
MOST_RANKS = 24  # at a time, of which each takes up to 300 MB

Command = tuple[Sequence[str], Mapping[str, str]]  # a launcher's arguments before those of Python, and the variables


class WarmRanks(contextlib.ExitStack):
    """Connections to ranks that wait for programs. At its end they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="warm-")))
        self._listener = self.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(self.folder / "ranks"))
        self._listener.listen(64)
        self._listener.settimeout(DEADLINE)
        self._connections: list[socket.socket] = []

    @property
    def command(self) -> list[str]:
        """The command of each rank."""
        return [sys.executable, str(Path(__file__).with_name("warm_rank.py")), str(self.folder / "ranks")]

    def accept(self, size: int) -> None:
        """Wait until all ranks have started."""
        for _ in range(size):
            connection = self.enter_context(self._listener.accept()[0])
            connection.settimeout(DEADLINE)
            self._connections.append(connection)

    def hang_up(self) -> None:
        """Let the ranks end."""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)

    def run(self, program: Path, *arguments: str, **environ: str) -> str:
        """Run a program on all ranks to its successful end; return what they printed."""
        order = json.dumps({"program": str(program), "arguments": arguments, "environ": environ}) + "\n"
        for connection in self._connections:
            connection.sendall(order.encode())
        answers = self._answers()
        printed = "".join(answer["printed"] for answer in answers)
        errors = "\n".join(answer["error"] for answer in answers if answer["error"])
        assert not errors, f"{program.name}:\n{errors[-8000:]}\n{printed[-5000:]}"
        return printed

    def _answers(self) -> list[dict[str, str]]:
        """Wait for the answers of all ranks: until the deadline, or a short while after the first error."""
        lines = dict.fromkeys(self._connections, b"")
        deadline = time.monotonic() + DEADLINE
        with selectors.DefaultSelector() as waiting:
            for connection in self._connections:
                waiting.register(connection, selectors.EVENT_READ)
            while waiting.get_map() and (ready := waiting.select(deadline - time.monotonic())):
                for connection in [key.fileobj for key, _ in ready]:
                    part = connection.recv(1 << 20)
                    lines[connection] += part
                    if not part or part.endswith(b"\n"):
                        waiting.unregister(connection)
                        if _answer(lines[connection])["error"]:
                            deadline = min(deadline, time.monotonic() + AFTER_AN_ERROR)
            late = [key.fileobj for key in waiting.get_map().values()]
        answers = [_answer(line) for connection, line in lines.items() if connection not in late]
        if late:
            error = f"{len(late)} ranks did not end in time; the stacks of all their threads:\n{self._stacks(late)}"
            answers.append({"printed": "", "error": error})
        return answers

    def _stacks(self, ranks: list[socket.socket]) -> str:
        """Ask ranks for the stacks of all their threads, as faulthandler writes them."""
        for connection in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer_process(connection)[0], signal.SIGUSR1)
        time.sleep(2)  # nobody says when they are written
        return (self.folder / "stacks").read_text()


def _answer(line: bytes) -> dict[str, str]:
    return json.loads(line) if line else {"printed": "", "error": "the rank has ended"}


class WarmJob:
    """A job of such ranks, with the processes that the test has started for it."""

    def __init__(self, commands: Sequence[Command], size: int) -> None:
        """Start a job of `size` ranks, by one command for a launcher or one for each rank."""
        self.size = size
        self.is_alive = True
        self._ranks = WarmRanks()
        self._log = self._ranks.enter_context((self._ranks.folder / "log").open("w+"))
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
        self._processes = [
            subprocess.Popen([*command, *self._ranks.command], env=dict(environ), **streams)
            for command, environ in commands
        ]
        with self._over_if_it_fails():
            self._ranks.accept(size)

    def run(self, program: Path, *arguments: str, **environ: str) -> str:
        """Run a program on all ranks to its successful end; return what they printed."""
        with self._over_if_it_fails():
            return self._ranks.run(program, *arguments, **environ)

    @contextlib.contextmanager
    def _over_if_it_fails(self):
        try:
            yield
        except (AssertionError, OSError) as error:
            self._end(kill=True)
            raise AssertionError(f"{error}\n{self._log_text}") from None

    def _end(self, kill: bool) -> list[int]:
        """The exit statuses of all processes."""
        self.is_alive = False
        if kill:
            for process in self._processes:
                process.terminate()
        statuses = [process.wait(DEADLINE) for process in self._processes]
        self._log.seek(0)
        self._log_text = self._log.read()[-5000:]
        self._ranks.close()
        return statuses

    def close(self) -> None:
        """End the job, which has nothing to complain of."""
        if self.is_alive:
            self._ranks.hang_up()
            statuses = self._end(kill=False)
            assert not any(statuses), f"exit statuses {statuses}: {self._log_text}"


class WarmJobs:
    """All the jobs of a session that stay up, by name, unless they have too many ranks: then the oldest ones end."""

    def __init__(self) -> None:
        self._jobs: dict[str, WarmJob] = {}  # those used last come last

    def get(self, name: str, commands: Callable[[], Sequence[Command]], size: int) -> WarmJob:
        """Return the job of that name and size; it is started by those commands if it is not running."""
        job = self._jobs.pop(name, None)
        if job is None or not job.is_alive:
            while self._jobs and size + sum(other.size for other in self._jobs.values()) > MOST_RANKS:
                self._jobs.pop(next(iter(self._jobs))).close()
            job = WarmJob(commands(), size)
        self._jobs[name] = job
        return job

    def close(self) -> None:
        """End them all; a complaint is raised when all have ended."""
        with contextlib.ExitStack() as stack:
            for job in self._jobs.values():
                stack.callback(job.close)
