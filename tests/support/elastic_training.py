"""A job that trains until its test lets it end, whatever happens to its ranks and hosts meanwhile."""

from __future__ import annotations

import os
import re
import signal
import sys

# Tells of each entry into the function: `at GENERATION RANK SIZE SLOT PID STEP`. A test lets it end by a file.
ELASTIC = """
import os, time
import distrun, numpy
from distrun import elastic

distrun.init()

@elastic.run
def train(state):
    place = [os.environ["DISTRUN_" + name] for name in ("GENERATION", "RANK", "SIZE", "SLOT")]
    print("at", *place, os.getpid(), state.step, flush=True)
    while not distrun.allreduce(numpy.array([float(os.path.exists(os.environ["END"]))]), name="end").any():
        state.step += 1
        state.advance()
        time.sleep(0.01)
    return state.step

steps = train(elastic.ObjectState(step=0))
print("done", distrun.rank(), steps, flush=True)
"""


class Training:
    """A running job of ELASTIC."""

    def __init__(self, distrun, tmp_path, *arguments: str, script: str = ELASTIC, **environ: str) -> None:
        self._end = tmp_path / "end"
        self.script = tmp_path / "train.py"
        self.script.write_text(script)
        self.job = distrun(*arguments, "-x", "END", sys.executable, str(self.script), END=str(self._end), **environ)
        self._seen = 0
        """The generation that was waited for last."""

    def wait_for_ranks(self, size: int) -> dict[int, int]:
        """Wait until a later generation of this size has entered the function; return its process ids by rank."""
        pattern = re.compile(rb"^\[\d+\] at (\d+) (\d+) %d \d+ (\d+) \d+$" % size, re.MULTILINE)
        lines = 0
        while True:
            lines = self.job.stdout.wait_for(b"\n", lines + 1).count(b"\n")
            generations: dict[int, dict[int, int]] = {}
            for match in pattern.finditer(self.job.stdout.data):
                generations.setdefault(int(match[1]), {})[int(match[2])] = int(match[3])
            for generation, ranks in generations.items():
                if generation > self._seen and len(ranks) == size:
                    self._seen = generation
                    return ranks

    def finish(self) -> bytes:
        """Let it end; returns what it has printed."""
        self._end.touch()
        self.job.ended(0)
        return self.job.stdout.data


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def done(output: bytes) -> dict[int, int]:
    """rank -> the number of its last step."""
    return {int(rank): int(step) for rank, step in re.findall(rb"done (\d+) (\d+)", output)}
