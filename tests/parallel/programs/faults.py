"""Ranks in trouble: the first argument names the scenario; stdin tells when it begins, stdout how it ended."""

import os
import select
import signal
import sys
from collections.abc import Callable

import numpy as np

import distrun
from distrun.runtime.shared_memory import peer_memory

scenario = sys.argv[1]
victim = int(sys.argv[2]) if len(sys.argv) > 2 else -1
distrun.init()
me, size = distrun.rank(), distrun.size()


def say(text: str) -> None:
    print(text, flush=True)


def attempt(
    name: str,
    count: int = 3,
    among: distrun.ProcessSet = distrun.global_process_set,
    allreduce: Callable[..., np.ndarray] = distrun.allreduce,
) -> bool:
    """One allreduce; says how it went."""
    try:
        result = allreduce(np.ones(count), name, distrun.Sum, process_set=among)
    except distrun.DistrunError as error:
        say(f"{name}: {type(error).__name__}: {error}")
        return False
    assert (result == among.size()).all()
    say(f"{name}: done")
    return True


def busy_with_something_else() -> None:
    """A loop in pure Python until the test writes a line."""
    while not select.select([sys.stdin], [], [], 0)[0]:
        pass
    sys.stdin.readline()


distrun.barrier()
say("ready")
if scenario == "waiting":  # for a rank that does nothing until it is told to, if it lives that long
    if me == victim:
        if sys.stdin.readline() == "exit\n":
            sys.exit(3)
    else:
        attempt("first")
        attempt("second")
elif scenario == "working":  # all are communicating when one is killed
    turn = 0
    while attempt("big", 2_000_000 if turn % 2 else 100):
        turn += 1
elif scenario == "working in a set":  # the first rank and the last; the others wait for them
    ends = distrun.add_process_set([0, size - 1])
    turn = 0
    while ends.included() and attempt("big", 2_000_000 if turn % 2 else 100, ends):
        turn += 1
    if not ends.included():
        attempt("first")
elif scenario == "reading":  # the same, and they read each other's arrays
    peer_memory.is_in_huge_pages = lambda _: True
    while attempt("big", 2_000_000, allreduce=distrun.allreduce_):
        pass
elif scenario in ("killed before it is read", "killed before its result is read"):
    peer_memory.is_in_huge_pages = lambda _: True
    assert attempt("first", 1_000_000, allreduce=distrun.allreduce_)
    read, target_process = peer_memory.read, distrun.allgather_object(os.getpid())[victim]

    def kill_first(process: int, address: int, target: np.ndarray) -> None:
        is_result = target.nbytes > 1 << 20
        if process == target_process and is_result == ("result" in scenario):
            pidfd = os.pidfd_open(process)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
            os.close(pidfd)
        read(process, address, target)

    if me != victim:
        peer_memory.read = kill_first
    attempt("second", 1_000_000, allreduce=distrun.allreduce_)
elif scenario == "stopped inside":
    from distrun.runtime import world

    backend = world.engine().backend
    if me == victim:
        ordinary = backend.allreduce

        def stop_first(*arguments: object) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            ordinary(*arguments)

        backend.allreduce = stop_first
    attempt("first", 500_000)
elif scenario == "busy":
    if me == victim:
        busy_with_something_else()
    attempt("first")
    attempt("second")
elif scenario == "interrupted":
    if me == victim:
        try:
            attempt("first")
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
        attempt("second")
    else:
        sys.stdin.readline()
        attempt("first")
elif scenario == "retry":
    if me == victim:
        sys.stdin.readline()
    while not attempt("first"):
        pass
    assert distrun.allgather([me]).tolist() == list(range(size))
else:
    raise AssertionError(scenario)
say("end")
