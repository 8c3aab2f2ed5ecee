"""A job of program.py that runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos import checks
from benchmarks.support import processes

DEADLINE = 180.0
"""Seconds after which a job that does not go on counts as hanging; far more than anything takes."""


class HangError(Exception):
    """The job does not go on."""


class Job:
    """A running job of program.py."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], folder: Path, ends_by_itself: bool) -> None:
        self.folder = folder
        self.faults: list[str] = []
        self._ends_by_itself = ends_by_itself
        self._read: dict[Path, int] = {}
        self._told: dict[int, list[checks.Fact]] = {}
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=processes.end_with_parent,
            )

    def wait_for_steps(self, generation: int, steps: int, size: int) -> list[checks.Fact]:
        """Wait until a generation after this one has done so many steps, with so many ranks at least; return what its
        ranks told when they began.

        Raises:
            HangError: it takes too long, or the job has ended.
        """
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline and self.popen.poll() is None:
            latest, here = self._latest()
            told = Counter(fact["rank"] for fact in here if fact["what"] == "step")
            starts = [fact for fact in here if fact["what"] == "start"]
            is_whole = len(starts) == len(told) >= size and len(told) == starts[0]["size"]
            if latest > generation and is_whole and min(told.values()) >= steps:
                return starts
            time.sleep(0.02)
        raise HangError(f"after generation {generation} the job does not go on:\n{self.output()}")

    def _latest(self) -> tuple[int, list[checks.Fact]]:
        """Return the latest generation, and what its ranks have told so far."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]  # the last may still be on its way
            self._read[path] = self._read.get(path, 0) + len(lines)
            for line in lines.splitlines():
                fact = json.loads(line)
                self._told.setdefault(fact["generation"], []).append(fact)
        latest = max(self._told, default=0)
        return latest, self._told.get(latest, [])

    def end(self) -> None:
        """Have it end, and wait until it has."""
        if self.faults:
            return
        if not self._ends_by_itself:
            (self.folder / "end").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(DEADLINE * (5 if self._ends_by_itself else 1))
        if self.popen.poll() != 0:
            self.faults.append(f"the job ended with status {self.popen.poll()}:\n{self.output()}")

    def output(self) -> str:
        """Return the last lines that it wrote."""
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-40:])
