"""Commands that run beside each other, and those of one stream after each other."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

NO_TESTS = 5  # pytest's exit status where it has selected none
CLOSING_LINES = 50  # pytest's summary: what has failed and why
PROCESSES = ("ps", "-eo", "pid,ppid,stat,etimes,wchan:20,args", "--forest")


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the name under which its output is shown."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a command has ended; the counts are those in pytest's closing line."""

    name: str
    status: int
    seconds: float
    passed: int
    failed: int
    closing: str = ""
    """The last lines of its output."""

    @property
    def is_good(self) -> bool:
        return self.status in (0, NO_TESTS)


class Runner:
    """Runs commands, and shows the whole output of each when it has ended.

    Args:
        limit: seconds after which all commands are aborted, so that pytest writes where its threads are.
        on_end: called with each outcome, in the thread of the command's stream.
    """

    def __init__(self, limit: float, on_end: Callable[[Outcome], None] = lambda _: None) -> None:
        self._limit = limit
        self._on_end = on_end
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_over = False

    def run(self, streams: Mapping[str, Sequence[Command]]) -> list[Outcome]:
        """Run the commands of all streams; return their outcomes in the order of `streams`."""
        watchdog = threading.Timer(self._limit, self._abort)
        watchdog.start()
        try:
            with TemporaryDirectory() as folder, ThreadPoolExecutor(len(streams)) as pool:
                waiting = [pool.submit(self._one_by_one, commands, Path(folder)) for commands in streams.values()]
                try:
                    return [outcome for future in waiting for outcome in future.result()]
                except KeyboardInterrupt:
                    self._end(signal.SIGINT)
                    raise
        finally:
            watchdog.cancel()

    def _one_by_one(self, commands: Sequence[Command], folder: Path) -> list[Outcome]:
        outcomes = (self._run_one(command, folder) for command in commands)
        return list(itertools.takewhile(lambda outcome: outcome is not None, outcomes))  # type: ignore[arg-type]

    def _run_one(self, command: Command, folder: Path) -> Outcome | None:
        """Run a command to its end. Return None if the run is over, so that it was not started."""
        begun = time.monotonic()
        output = folder / command.name.replace("/", "-")
        with output.open("wb") as file, self._lock:
            if self._is_over:
                return None
            process = subprocess.Popen(command.words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
            self._running[command.name] = process
            print(f"== {command.name}: begun", flush=True)
        status = process.wait()
        seconds = time.monotonic() - begun
        text = output.read_text(errors="replace")
        output.unlink()
        closing = "\n".join(text.splitlines()[-CLOSING_LINES:])
        outcome = Outcome(command.name, status, seconds, *_counts(text), closing)
        with self._lock:
            del self._running[command.name]
            print(f"== {command.name}: exit status {status} after {seconds / 60:.1f} min\n{text}", flush=True)
            self._on_end(outcome)
        return outcome

    def _abort(self) -> None:
        print(f"== not ended within {self._limit / 60:.0f} min; aborted. The processes:", flush=True)
        subprocess.run(PROCESSES, stdout=sys.stdout, check=False)
        self._end(signal.SIGABRT)

    def _end(self, signum: int) -> None:
        with self._lock:
            self._is_over = True
            for process in self._running.values():
                process.send_signal(signum)


def _counts(output: str) -> tuple[int, int]:
    """Return how many tests have passed, and how many failed or ended in an error, by pytest's closing line."""
    #   ==== 2 failed, 310 passed, 4 skipped, 1 error in 35.31s ====
    closing = re.findall(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", output, re.MULTILINE)
    counts = dict.fromkeys(("passed", "failed", "error", "errors"), 0)
    for number, word in re.findall(r"(\d+) (\w+)", closing[-1] if closing else ""):
        counts[word] = int(number)
    return counts["passed"], counts["failed"] + counts["error"] + counts["errors"]
