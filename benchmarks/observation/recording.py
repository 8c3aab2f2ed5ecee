"""Recording: what an event costs, and what a training step does that is recorded beside one that is not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.support import launchers, processes, ranks
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import fastest, summary
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.tracing.layout import INPUT
from distrun.tracing.ring import Ring

DEADLINE = 300.0
"""The time limit of one script in seconds."""
TURNS = 7
"""The number of turns of each script: whatever the machine does meanwhile happens to both."""
AT_ONCE = 1000  # events between two readings of the clock
OFF, ON = "not recorded", "recorded"


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Yield the cost of single events, then that of steps through the interface that users call.

    Raises:
        processes.ProcessError: a script failed or took too long.
    """
    yield _events(quick)
    yield _steps(quick, environ, work)


def _events(quick: bool) -> Comparison:
    ring = Ring()
    ring.step_done()
    handle = Handle(None, Request("allreduce", "gradient", "float32", ((1000,),)), ())  # type: ignore[arg-type]
    handle.cache_id, batch = 7, [handle]
    comparison = Comparison(
        "recording, seconds per event",
        "event",
        [ON],
        [],
        notes=["A step of 5 ms with 20 events has 25 us for them if they are to take half a percent of it."],
    )
    calls: dict[str, Callable[[], object]] = {
        "the main thread does something else": lambda: ring.enter(INPUT),
        "an operation is done": lambda: ring.done(batch, 5),
        "a step is done": ring.step_done,
    }
    for title, call in calls.items():
        comparison.add(title, {ON: summary(list(_timed(call, 30 if quick else 100)))})
    return comparison


def _timed(call: Callable[[], object], rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(AT_ONCE):
            call()
        yield (time.perf_counter() - begun) / AT_ONCE


def _steps(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    steps: dict[str, dict[str, list[list[float]]]] = {}
    for _ in range(2 if quick else TURNS):
        for name, switch in ((OFF, "0"), (ON, "1")):
            for row, durations in _run({**environ, "DISTRUN_EVENTS": switch}, work).items():
                steps.setdefault(row, {}).setdefault(name, []).append(durations)
    comparison = Comparison(
        f"recording, a step of torch with a DistributedOptimizer and a DataLoader, {ranks.SIZE} ranks",
        "step",
        [OFF, ON],
        [(ON, OFF)],
        notes=["They have processes of their own and take turns; of each step of an epoch the fastest turn counts."],
    )
    for row, scripts in steps.items():
        comparison.add(row, {name: fastest(turns) for name, turns in scripts.items()})
    return comparison


def _run(environ: Mapping[str, str], work: Path) -> dict[str, list[float]]:
    result = work / "recording.json"
    script = [sys.executable, "-m", "benchmarks.auto.by_hand", str(result)]
    command = [*launchers.distrun(), "-np", str(ranks.SIZE), *script]
    processes.run(command, {**environ, **ranks.one_thread()}, DEADLINE)
    found: dict[str, list[float]] = json.loads(result.read_text())
    return found
