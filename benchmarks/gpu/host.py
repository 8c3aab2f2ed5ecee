"""What GPUs cost the host: calls and time per operation, on the simulated GPU of tests/simulator.

A program for ranks: `distrun -np N python -m benchmarks.gpu.host --result FILE`. Counted are the calls that distrun's
code makes or is called by, of Python and of C functions, in all threads. The other figure is the time with the
simulator's own work in it. Tensors in host memory play those on the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.gpu.ranks import resnet50

RUNS = 30
"""Runs of each program. The least of their counts is the result: a wait for another rank only adds calls."""
TENSORS = 200
SMALL = 1024
"""Elements of a small tensor: 4 KB."""


class Calls:
    """Counts calls in this process, from the moment it is made: threads that are started before are not counted."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}/"
        self._is_ours: dict[Any, bool] = {}
        self._count = 0
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            caller = frame.f_back
            self._count += self._ours(frame) or (caller is not None and self._ours(caller))
        elif event == "c_call":
            self._count += self._ours(frame)

    def _ours(self, frame: FrameType) -> bool:
        known = self._is_ours.get(frame.f_code)
        if known is None:
            known = self._is_ours[frame.f_code] = frame.f_code.co_filename.startswith(self._prefix)
        return known

    def of(self, program: Callable[[], object]) -> int:
        """Return the number of calls in one run of `program`."""
        before = self._count
        program()
        return self._count - before

    def stop(self) -> None:
        """Count nothing from now on. Threads that run keep the function, which costs them time."""
        sys.setprofile(None)
        threading.setprofile(None)


def programs() -> dict[str, Callable[[], object]]:
    """Return the programs to measure, by the name of the operation, after `init`."""
    import distrun.torch as dt

    single = torch.zeros(SMALL)
    many = [torch.zeros(SMALL) for _ in range(TENSORS)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in resnet50()]
    zeros = [torch.zeros_like(parameter) for parameter in parameters]
    optimizer = dt.DistributedOptimizer(torch.optim.SGD(parameters, 0.0))

    def one_by_one() -> None:
        for handle in [dt.allreduce_async_(each, name=f"t{i}", op=dt.Sum) for i, each in enumerate(many)]:
            dt.synchronize(handle)

    def backward() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(parameters, zeros)
        optimizer.synchronize()

    return {
        "an allreduce of 4 KB": lambda: dt.allreduce_(single, name="x", op=dt.Sum),
        f"{TENSORS} x 4 KB in one call": lambda: dt.grouped_allreduce_(many, name="g", op=dt.Sum),
        f"{TENSORS} x 4 KB one by one": one_by_one,
        f"the {len(parameters)} gradients of ResNet-50": backward,
    }


def main() -> None:
    """Measure, and write rank 0's figures to a file: calls and seconds by operation."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--count", action="store_true", help="count calls instead of measuring time")
    options = parser.parse_args()
    import distrun
    import distrun.torch as dt

    calls = Calls(Path(distrun.__file__).parent) if options.count else None
    dt.init()
    import playing

    playing.play()
    found: dict[str, list[float]] = {}
    for name, program in programs().items():
        for _ in range(5):
            program()
        found[name] = []
        for _ in range(RUNS):
            dt.barrier()
            began = time.perf_counter()
            count = program() if calls is None else calls.of(program)
            found[name].append(time.perf_counter() - began if calls is None else count)
    if calls is not None:
        calls.stop()
    if dt.rank() == 0:
        options.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
