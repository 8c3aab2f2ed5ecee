"""Real ranks that negotiate operations and execute none of them: what the simulator is compared with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from statistics import median

import distrun
from distrun.runtime import world
from distrun.runtime.engine.execute import Executor
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request


def main() -> None:
    """Print, on rank 0, the median seconds from the last submission of an operation to the last rank's decision."""
    rounds = int(sys.argv[1])
    distrun.init()
    engine = world.engine()
    requests = [Request("allreduce", f"gradient.{number}", "float32", ((1000,),)) for number in range(4)]
    execute = Executor.execute
    times: list[tuple[float, float]] = []
    for number in range(rounds + len(requests)):
        distrun.barrier()
        Executor.execute = _complete  # type: ignore[method-assign]
        begun = time.perf_counter()
        engine.run(Handle(engine, requests[number % len(requests)], ())).wait()
        times.append((begun, time.perf_counter()))  # the same clock on all ranks
        Executor.execute = execute  # type: ignore[method-assign]
    everybody = distrun.allgather_object(times[len(requests) :])
    if distrun.rank() == 0:
        rounds_of_all = zip(*everybody, strict=True)
        print(
            json.dumps(median(max(e for _, e in each) - max(b for b, _ in each) for each in rounds_of_all)), flush=True
        )


def _complete(self: Executor, handles: Sequence[Handle]) -> None:
    self.tell(handles)


if __name__ == "__main__":
    main()
