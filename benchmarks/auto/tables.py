"""`distrun --auto`: a step of a plain script beside one of the same script with a DistributedOptimizer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.auto.training import BATCH
from benchmarks.support import launchers, processes, ranks
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import fastest

DEADLINE = 300.0
"""The time limit of one script in seconds."""
TURNS = 5
"""The number of turns of each script: whatever the machine does meanwhile happens to both."""
BY_HAND, AUTO = "by hand", "--auto"
PROGRAMS = {BY_HAND: ([], "benchmarks.auto.by_hand"), AUTO: (["--auto"], "benchmarks.auto.plain")}


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    """Let both scripts take turns; return their steps as a table.

    Raises:
        processes.ProcessError: a script failed or took too long.
    """
    steps: dict[str, dict[str, list[list[float]]]] = {}
    for _ in range(2 if quick else TURNS):
        for name in PROGRAMS:
            for row, durations in _run(name, environ, work).items():
                steps.setdefault(row, {}).setdefault(name, []).append(durations)
    comparison = Comparison(
        f"--auto, batch {BATCH}, SGD, one thread, {ranks.SIZE} ranks",
        "step",
        [BY_HAND, AUTO],
        [(AUTO, BY_HAND)],
        notes=[
            f"{BY_HAND}: the same script with distrun.torch.DistributedOptimizer and distributed_sampler, where "
            "loss.item() is of the part alone; under --auto it is that of the batch.",
            "They have processes of their own and take turns; of each step of an epoch the fastest turn counts.",
        ],
    )
    for row, scripts in steps.items():
        comparison.add(row, {name: fastest(turns) for name, turns in scripts.items()})
    return comparison


def _run(name: str, environ: Mapping[str, str], work: Path) -> dict[str, list[float]]:
    options, program = PROGRAMS[name]
    result = work / "auto.json"
    command = [*launchers.distrun(), *options, "-np", str(ranks.SIZE), sys.executable, "-m", program, str(result)]
    processes.run(command, {**environ, **ranks.one_thread()}, DEADLINE)
    found: dict[str, list[float]] = json.loads(result.read_text())
    return found
