"""Real ranks that negotiate, reduce, start or fail: what the simulators are compared with.

Each rank prints what it has found, as JSON; in the first two only rank 0 does, for all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import distrun
from distrun.errors import JobAbortedError
from distrun.runtime.backends.rail import Rail
from distrun.runtime.engine.execute import Executor
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.transport.rendezvous.client import Client
from distrun.runtime.transport.rendezvous.protocol import Member, RendezvousEndpoint
from distrun.runtime.world import world
from distrun.runtime.world.bootstrap import across_hosts

_PAUSE = 0.5  # seconds in which all ranks have begun to wait

Span = tuple[float, float]  # on the clock that all ranks share


def negotiate(rounds: str) -> float | None:
    """Return, on rank 0, the median seconds from the last submission of an operation to the last rank's decision."""
    distrun.init()
    engine = world.engine()
    requests = [Request("allreduce", f"gradient.{number}", "float32", ((1000,),)) for number in range(4)]
    execute = Executor.execute
    times: list[Span] = []
    for number in range(int(rounds) + len(requests)):
        distrun.barrier()
        Executor.execute = _complete  # type: ignore[method-assign]
        begun = time.perf_counter()
        engine.run(Handle(engine, requests[number % len(requests)], ())).wait()
        times.append((begun, time.perf_counter()))
        Executor.execute = execute  # type: ignore[method-assign]
    return _median(times[len(requests) :])


def _complete(self: Executor, handles: Sequence[Handle]) -> None:
    self.tell(handles)


def _median(times: Sequence[Span]) -> float | None:
    """Return, on rank 0, the median of the seconds from the last rank's start to the last one's end."""
    everybody = distrun.allgather_object(times)
    if distrun.rank():
        return None
    rounds = zip(*everybody, strict=True)
    return median(max(end for _, end in each) - max(begun for begun, _ in each) for each in rounds)


def reduce(rounds: str, nbytes: str) -> float | None:
    """Return, on rank 0, the median seconds of what rails do in allreduces."""
    times: list[Span] = []

    def timed(reduced: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any, **kwargs: Any) -> None:
            begun = time.perf_counter()
            reduced(*args, **kwargs)
            times.append((begun, time.perf_counter()))

        return run

    distrun.init()
    array = np.zeros(int(nbytes) // 4, np.float32)
    distrun.allreduce_(array, name="array")  # makes connections, measures links
    Rail.reduce, Rail.reduce_whole = timed(Rail.reduce), timed(Rail.reduce_whole)  # type: ignore[method-assign]
    for _ in range(int(rounds)):
        distrun.allreduce_(array, name="array")
    return _median(times)


def start(folder: str, size: str) -> Span:
    """Return when this rank began to look for rank 0, as all ranks were there, and when it had the table of members."""
    there: list[float] = []
    rendezvous = across_hosts.rendezvous_across_hosts

    def timed(*args: Any) -> Any:
        there.append(time.perf_counter())
        table = rendezvous(*args)
        there.append(time.perf_counter())
        return table

    across_hosts.rendezvous_across_hosts = timed
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < int(size):
        time.sleep(0.002)
    distrun.init()
    distrun.barrier()
    return there[0], there[1]


def fail(first_victim: str) -> float | None:
    """Return the seconds after which this rank knows that all ranks from a number on were killed."""
    distrun.init()
    distrun.allreduce_(np.zeros(1 << 20, np.float32), name="array")  # every rail has its connections
    moment = distrun.broadcast_object(time.perf_counter() + _PAUSE)
    if distrun.rank() >= int(first_victim):
        time.sleep(max(0.0, moment - time.perf_counter()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        distrun.allreduce_(np.zeros(1 << 20, np.float32), name="array")
    except JobAbortedError:
        return time.perf_counter() - moment
    return None


def join(count: str, port: str, key: str) -> None:
    """Connect with a rank 0 of another process as so many ranks, each of them a thread."""
    endpoint = RendezvousEndpoint((("127.0.0.1", int(port)),), bytes.fromhex(key))

    def run(rank: int) -> None:
        Client(int(count) + 1, Member(rank, "b", "b", os.getpid(), "", 0), endpoint, 60.0).run(None).close()

    threads = [threading.Thread(target=run, args=(1 + index,)) for index in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Do what the command line says, and print the result unless it is None."""
    found = {each.__name__: each for each in (negotiate, reduce, start, fail, join)}[sys.argv[1]](*sys.argv[2:])
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
