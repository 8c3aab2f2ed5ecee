"""One rank of a synthetic training; rank 0 prints the profile of the job, and its steps, as JSON.

    python -m benchmarks.prediction.training WORKLOAD STEPS SCALE BITS_PER_S

The profile is what a job would write that measures itself: medians of the steps and ranks, and the time that each
operation takes by itself, from when all ranks have its gradients.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time

import numpy as np

import distrun
from benchmarks.prediction.workloads import WORKLOADS, Workload
from distrun.runner.observation.prediction.profile import Gradients, JobProfile, MeasuredLink, StepSeconds

WARMING = 4
ALONE = 7
"""How often each operation is measured by itself."""


def main() -> None:
    """Train, and measure."""
    name, steps, scale, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    distrun.init()
    workload = WORKLOADS[name]
    arrays = [np.ones(max(int(size * scale) // 4, 1), np.float32) for size in workload.sizes]
    alone = _operations(arrays) if distrun.size() > 1 else [None] * len(arrays)
    chance = random.Random(distrun.rank())
    rows = [_step(workload, arrays, chance) for _ in range(steps + WARMING)][WARMING:]
    found = distrun.allgather_object((rows, alone))
    if distrun.rank() == 0:
        print(json.dumps(_result(workload, found, [array.nbytes for array in arrays], rate)), flush=True)
    distrun.shutdown()


def _step(workload: Workload, arrays: list[np.ndarray], chance: random.Random) -> list[float]:
    """Take a step; return its seconds, those of forward and backward, and when each gradient was ready."""
    stretch = max(1 + chance.gauss(0, workload.jitter) / workload.backward, 0.1)
    begin = time.perf_counter()
    time.sleep(workload.forward)
    back = time.perf_counter()
    handles, ready = [], []
    for index, (array, part) in enumerate(zip(arrays, workload.ready, strict=True)):
        time.sleep(max(back + workload.backward * stretch * part - time.perf_counter(), 0.0))
        ready.append(time.perf_counter() - back)
        handles.append(distrun.allreduce_async_(array, name=f"gradients.{index}"))
    end = time.perf_counter()
    for handle in handles:
        distrun.synchronize(handle)
    return [time.perf_counter() - begin, back - begin, end - back, *ready]


def _operations(arrays: list[np.ndarray]) -> list[float]:
    """Return the median seconds of each operation by itself, counted from when the last rank has begun."""
    found = []
    for index, array in enumerate(arrays):
        times = []
        for _ in range(ALONE):
            distrun.barrier()
            begin = time.perf_counter()
            distrun.synchronize(distrun.allreduce_async_(array, name=f"alone.{index}"))
            times.append(time.perf_counter() - begin)
        found.append(statistics.median(times))
    return found


def _result(workload: Workload, found: list, sizes: list[int], rate: float) -> dict:
    """Return the profile and rank 0's steps."""
    columns = [[statistics.median(column) for column in zip(*rows, strict=True)] for rows, _ in found]
    median = [statistics.median(column) for column in zip(*columns, strict=True)]
    computing = [[row[1] + row[2] for row in rows] for rows, _ in found]
    alone = [None if None in times else statistics.median(times) for times in zip(*(a for _, a in found), strict=True)]
    profile = JobProfile(
        ranks=len(found),
        hosts=len(found),
        ranks_per_host=1,
        steps=len(found[0][0]),
        seconds=StepSeconds(median[0], median[1], median[2], communication=max(median[0] - median[1] - median[2], 0.0)),
        jitter=math.sqrt(statistics.fmean(_deviation(times) ** 2 for times in computing)),
        spread=statistics.pstdev([statistics.median(times) for times in computing]),
        wire="float32",
        gradients=tuple(
            Gradients(size, ready, size, seconds) for size, ready, seconds in zip(sizes, median[3:], alone, strict=True)
        ),
        link=MeasuredLink(rate) if len(found) > 1 else None,
    )
    return {"profile": profile.to_json(), "steps": [row[0] for row in found[0][0]]}


def _deviation(times: list[float]) -> float:
    """Return the standard deviation as the middle half of the times has it: interrupted steps do not count."""
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 1.349


if __name__ == "__main__":
    main()
