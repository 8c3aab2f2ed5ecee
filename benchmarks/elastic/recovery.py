"""Recovery: how long a job takes to go on after `kill -9` of one of its ranks, and what being able to costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.support import launchers, processes, ranks
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import summary

RANKS = Path(__file__).with_name("recovery_ranks.py")
SYNC = "benchmarks.elastic.recovery_sync"
SIZES = (2, 4)
SIZE = "SIZE"
"""An option of a launcher that stands for the number of ranks."""
ROUNDS = 5
BEFORE = 15
"""Steps that all ranks have done before one is killed."""
PAUSE = 0.02
"""Seconds that each step sleeps, so that ranks which share cores keep pace."""
DEADLINE = 90.0
IMPORTED = 0.3
"""Seconds of processor time that a spare has used before it has imported anything worth while."""

SHRINK, WARM, COLD, RESTART, WARM_RESTART = "shrink", "warm spare", "replaced", "restarted", "restarted, spares"
TORCHRUN, TORCHRUN_OWN_STORE = "torchrun", "torchrun, own store"
IMPORTS, IMPORTS_AT_ONCE = "imports", "imports at once"
IMPORTED_MODULES = "import torch, distrun.torch, torch._dynamo"  # the last by the first optimizer
MOST_FAILURES = 2
"""Runs of a way that fail before no more of it is done."""


@dataclass(frozen=True)
class Way:
    """A way to survive: a kind of script, and the command that starts it."""

    kind: str
    launcher: Callable[[int], list[str]]
    """The command line up to the Python, for a number of ranks."""
    spares: Callable[[int], int] = lambda size: 0
    """The number of its spares, for a number of ranks."""
    environ: Mapping[str, str] = field(default_factory=dict)


def _distrun(*options: str) -> Callable[[int], list[str]]:
    return lambda size: [
        *(*launchers.distrun(), "-q", "-np", str(size)),
        *(str(size) if option == SIZE else option for option in options),
        sys.executable,
    ]


def _torchrun(size: int) -> list[str]:
    return [launchers.torchrun(), "--nproc-per-node", str(size), "--max-restarts", "3"]


WAYS = {
    SHRINK: Way("elastic", _distrun("--elastic", "--min-np", "1")),
    WARM: Way("elastic", _distrun("--elastic", "--spares", "1"), spares=lambda size: 1),
    COLD: Way("elastic", _distrun("--elastic")),
    RESTART: Way("checkpoint", _distrun("--max-restarts", "3")),
    WARM_RESTART: Way("checkpoint", _distrun("--max-restarts", "3", "--spares", SIZE), spares=lambda size: size),
    TORCHRUN: Way("ddp", _torchrun),
    TORCHRUN_OWN_STORE: Way("ddp", _torchrun, environ={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
}


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Yield the table of recoveries, of steps that do not fail, and of the state that a newcomer gets."""
    environ = {**environ, **ranks.one_thread()}
    rounds = 3 if quick else ROUNDS
    yield _recoveries(rounds, environ, work)
    yield _steps(rounds, environ, work)
    launcher = [*launchers.distrun(), "-q", "-np", "2", sys.executable]
    yield ranks.launch(launcher, SYNC, quick, environ, work, DEADLINE)


# Recoveries -----------------------------------------------------------------------------------------------------------


class Recovery(NamedTuple):
    """The seconds from a kill to rank 0's next completed step, and the steps that were done again."""

    seconds: float
    lost: int


def _recoveries(rounds: int, environ: Mapping[str, str], work: Path) -> Comparison:
    comparison = Comparison(
        "kill -9 of one rank, seconds until rank 0's next completed step",
        "job",
        [*WAYS, IMPORTS, IMPORTS_AT_ONCE],
        [(TORCHRUN_OWN_STORE, RESTART), (TORCHRUN_OWN_STORE, WARM)],
        notes=[
            f"{SHRINK}, {WARM}, {COLD}: distrun --elastic, with --min-np 1, --spares 1, or neither; {RESTART}: distrun "
            "--max-restarts 3, a script with checkpoints every 10 steps, and as many spares as ranks; torchrun "
            "--max-restarts 3: DDP over gloo with the same checkpoints, as it comes and with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. The model has 1.6 million parameters and Adam. imports: the "
            f"wall time of `{IMPORTED_MODULES}` in a new process, which every replacement but a spare pays; at once: "
            "in as many processes as there are ranks, which all restarted ranks pay."
        ],
    )
    failures: Counter[str] = Counter()  # of all sizes: those of torchrun wait for the deadline
    for size in SIZES:
        seconds: dict[str, list[float]] = {}
        lost: dict[str, list[int]] = {}
        failed: dict[str, list[str]] = {}
        for number in range(rounds):
            seconds.setdefault(IMPORTS, []).append(_import_time(environ, 1))
            seconds.setdefault(IMPORTS_AT_ONCE, []).append(_import_time(environ, size))
            for name, way in WAYS.items():
                if failures[name] == MOST_FAILURES:
                    continue
                folder = work / f"{name}.{size}.{number}".replace(" ", "-")
                try:
                    found = recovery(way, size, {**environ, **way.environ}, folder)
                except processes.ProcessError as error:
                    failures[name] += 1
                    failed.setdefault(name, []).append(str(error).strip().splitlines()[0])
                else:
                    seconds.setdefault(name, []).append(found.seconds)
                    lost.setdefault(name, []).append(found.lost)
        comparison.add(f"{size} ranks", {name: summary(values) for name, values in seconds.items()})
        told = ", ".join(f"{name} {median(values):g}" for name, values in lost.items())
        comparison.notes.append(f"{size} ranks: steps lost, medians: {told}.")
        for name, errors in failed.items():
            runs = len(errors) + len(seconds.get(name, []))
            comparison.notes.append(f"{size} ranks: {name} failed in {len(errors)} of {runs} runs: {errors[0]}")
    for name, number in failures.items():
        if number == MOST_FAILURES:
            comparison.notes.append(f"After {number} failed runs, {name} was left alone.")
    return comparison


def recovery(way: Way, size: int, environ: Mapping[str, str], folder: Path) -> Recovery:
    """Start a job, kill its last rank, and measure.

    Raises:
        processes.ProcessError: it did not come that far, or did not go on.
    """
    folder.mkdir()
    with _job([*way.launcher(size), str(RANKS), way.kind, str(folder), "100000", str(PAUSE)], environ, folder) as job:
        job.wait_for(lambda: all(job.steps(rank)[BEFORE:] for rank in range(size)), "train")
        job.wait_for(lambda: job.warm_spares() >= way.spares(size), "make its spares ready")
        victim, (_, pid, generation) = size - 1, job.notes(size - 1, "start")[-1]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        job.wait_for(lambda: any(step[2] > generation for step in job.steps(0)), f"go on without rank {victim}")
        after = next(step for step in job.steps(0) if step[2] > generation)
        before = [step for step in job.steps(0) if step[2] == generation]
        return Recovery(after[0] - killed, before[-1][1] - after[1] + 1)


class _Job:
    """A launcher that runs, and what its ranks have noted."""

    def __init__(self, child: psutil.Popen, folder: Path) -> None:
        self._child = child
        self._folder = folder

    def notes(self, rank: int, word: str) -> list[tuple[float, int, int]]:
        """Return when a rank has noted a word, with its two numbers."""
        try:
            lines = [line.split() for line in (self._folder / f"{rank}.log").read_text().splitlines(keepends=False)]
        except FileNotFoundError:
            return []
        return [(float(line[0]), int(line[2]), int(line[3])) for line in lines if len(line) == 4 and line[1] == word]

    def steps(self, rank: int) -> list[tuple[float, int, int]]:
        """Return when a rank has completed its steps: their numbers, and the generation or restart."""
        return self.notes(rank, "step")

    def warm_spares(self) -> int:
        """Return how many spares have imported everything: they sleep in a read of their control channel."""
        count = 0
        for process in self._child.children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                environ = process.environ()
                if environ.get("DISTRUN_SPARE") == "1" and sum(process.cpu_times()[:2]) > IMPORTED:
                    # 0 0x7 0x55d3c1a0 0x100000 ...: the system call and its arguments, or `running`
                    call = Path(f"/proc/{process.pid}/syscall").read_text().split()
                    count += call[1:2] == [hex(int(environ["DISTRUN_CONTROL_FD"]))]
        return count

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Look every 2 ms whether something is the case.

        Raises:
            processes.ProcessError: the job has ended, or it has not happened in time.
        """
        end = time.monotonic() + DEADLINE
        while not condition():
            if self._child.poll() is not None:
                raise processes.ProcessError(f"the job ended with status {self._child.returncode} and did not {what}")
            if time.monotonic() > end:
                raise processes.ProcessError(f"the job did not {what} within {DEADLINE:.0f} s")
            time.sleep(0.002)


@contextlib.contextmanager
def _job(command: list[str], environ: Mapping[str, str], folder: Path) -> Iterator[_Job]:
    with (folder / "output").open("w") as output:
        child = psutil.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=processes.end_with_parent,
        )
        try:
            yield _Job(child, folder)
        finally:
            processes.end_family(child)


def _import_time(environ: Mapping[str, str], count: int) -> float:
    """Return the seconds until so many processes, started at once, have imported what the script does."""

    def imports(_: int) -> float:
        return processes.run([sys.executable, "-c", IMPORTED_MODULES], environ, DEADLINE).seconds

    with ThreadPoolExecutor(count) as threads:
        return max(threads.map(imports, range(count)))


# Jobs that do not fail ------------------------------------------------------------------------------------------------

PLAIN, ELASTIC, ELASTIC_SCRIPT = "distrun", "distrun --elastic", "with elastic.run"
STEPS = 300


def _steps(rounds: int, environ: Mapping[str, str], work: Path) -> Comparison:
    comparison = Comparison(
        "step of a job that does not fail, 2 ranks, medians of jobs",
        "job",
        [PLAIN, ELASTIC, ELASTIC_SCRIPT],
        [(ELASTIC, PLAIN), (ELASTIC_SCRIPT, PLAIN)],
        notes=[f"{ELASTIC}: the same script; {ELASTIC_SCRIPT}: distrun --elastic, a script that calls advance()."],
    )
    ways = {
        PLAIN: ("plain", _distrun()),
        ELASTIC: ("plain", _distrun("--elastic")),
        ELASTIC_SCRIPT: ("elastic", _distrun("--elastic")),
    }
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, (kind, launcher) in ways.items():
            folder = work / f"steps.{name}.{number}".replace(" ", "")
            folder.mkdir()
            processes.run([*launcher(2), str(RANKS), kind, str(folder), str(STEPS), "0"], environ, DEADLINE)
            times = [float(line.split()[0]) for line in (folder / "0.log").read_text().splitlines() if " step " in line]
            found.setdefault(name, []).append(median(end - begin for begin, end in pairwise(times[20:])))
    comparison.add("6 x Linear(512)", {name: summary(values) for name, values in found.items()})
    return comparison
