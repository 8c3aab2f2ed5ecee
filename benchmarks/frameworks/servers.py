"""Servers: what three workers of parameter servers do together when one of them is three times slower.

A worker's computing is a sleep, so that the figures are of the waiting and of the exchange, whatever the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping

from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary
from benchmarks.support.processes import ProcessError

WORKERS, SLOWER = 3, 3
COMPUTING = 0.05  # seconds of a step; of the slow worker three times that
ELEMENTS = 1_000_000
SYNCHRONOUS, BOUNDED, ASYNCHRONOUS = "0", "4", "inf"
SUM = "sum of the speeds"
_DEADLINE = 120.0  # seconds


def compare(quick: bool, environ: Mapping[str, str]) -> Comparison:
    """Compare the stalenesses."""
    comparison = Comparison(
        f"steps per second of {WORKERS} workers together, of which one is {SLOWER} times slower",
        "parameters",
        [SUM, *(names := {text: f"staleness {text}" for text in (SYNCHRONOUS, BOUNDED, ASYNCHRONOUS)}).values()],
        [(name, SUM) for name in names.values()],
        notes=[
            f"A step computes for {COMPUTING * 1000:g} ms, which is a sleep. {SUM}: what they do each for itself. One "
            "server, which SGD with momentum runs on."
        ],
        unit="",
    )
    ideal = (WORKERS - 1 + 1 / SLOWER) / COMPUTING
    results = {SUM: Summary(ideal, (ideal, ideal), 1)}
    for text, name in names.items():
        rate = _measured(text, 5.0 if quick else 15.0, environ)
        results[name] = Summary(rate, (rate, rate), 1)
    comparison.add(f"{ELEMENTS:,}", results)
    return comparison


def _measured(staleness: str, seconds: float, environ: Mapping[str, str]) -> float:
    """Return the steps per second of all workers."""
    worker = [sys.executable, "-m", "benchmarks.frameworks.servers", staleness, str(seconds)]
    command = [sys.executable, "-m", "distrun.runner", "-q", "--no-tag-output", "--servers", "1", "-np", str(WORKERS)]
    job = subprocess.run([*command, *worker], capture_output=True, text=True, timeout=_DEADLINE, env=dict(environ))
    if job.returncode:
        raise ProcessError(job.stderr)
    return sum(json.loads(line) for line in job.stdout.splitlines())


def work(staleness: float, seconds: float) -> None:
    """Be a worker, and print the steps per second."""
    import numpy as np

    import distrun
    from distrun.methods.servers.layout import Layout, Parameter
    from distrun.methods.servers.rules import Rule
    from distrun.methods.servers.session import Session

    distrun.init()
    settings = {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "delay": 0}
    layout = Layout((Parameter("a", (ELEMENTS,), 0),), (Rule("torch.SGD", settings),), WORKERS, staleness == 0)
    session = Session(layout)
    if distrun.rank() == 0:
        session.start({0: np.zeros(ELEMENTS, np.float32)})
    session.pull(staleness)
    computing = COMPUTING * (SLOWER if distrun.rank() == 0 else 1)
    distrun.barrier()
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        time.sleep(computing)
        session.await_values()
        session.gradient_of(0)[:] = 1e-3
        session.push([1e-3], [True], {}, staleness, ahead=int(staleness > 0))
        if not staleness:
            session.await_values()
    print(session.clock / (time.perf_counter() - begun), flush=True)


if __name__ == "__main__":
    work(float(sys.argv[1]), float(sys.argv[2]))
