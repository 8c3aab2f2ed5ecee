"""Ranks in trouble: the first argument names the scenario; stdin tells when it begins, stdout how it ended."""

import os
import select
import signal
import sys
from functools import partial

import numpy as np

import distrun
from distrun.runtime.operations import waking_clock
from distrun.runtime.transport.shared_memory import peer_process
from distrun.runtime.world import world

scenario = sys.argv[1]
victim = int(sys.argv[2]) if len(sys.argv) > 2 else -1
distrun.init()
me, size = distrun.rank(), distrun.size()


def say(text: str) -> None:
    print(text, flush=True)


def attempt(name: str, count: int = 3, among: distrun.ProcessSet = distrun.global_process_set) -> bool:
    """One allreduce; says how it went."""
    try:
        result = distrun.allreduce(np.ones(count), name, distrun.Sum, process_set=among)
    except distrun.DistrunError as error:
        say(f"{name}: {type(error).__name__}: {error}")
        return False
    assert (result == among.size()).all()
    say(f"{name}: done")
    return True


def let_an_hour_pass(*_: object) -> None:
    """Move the clock of this rank: timeouts of minutes are over when the test sends SIGUSR1."""
    waking_clock._stopped -= 3600.0
    local_group = world.engine().local_group
    for bell in (local_group.bell, local_group.service_bells[local_group.own]):  # a rank that sleeps is to look again
        bell.force()


def busy_with_something_else() -> None:
    """A loop in pure Python until the test writes a line."""
    while not select.select([sys.stdin], [], [], 0)[0]:
        pass
    sys.stdin.readline()


peer_process.ending = partial(peer_process.ending, timeout=60.0)  # the test collects what it kills, sooner or later
signal.signal(signal.SIGUSR1, let_an_hour_pass)
distrun.barrier(name="ready")
say("ready")
if scenario == "waiting":  # for a rank that does nothing until stdin says so, if it lives that long
    if me == victim:
        if sys.stdin.readline() == "exit\n":
            sys.exit(3)
    else:
        attempt("first")
        attempt("second")
elif scenario == "waiting when told":  # the same, and the others begin when they are told to
    sys.stdin.readline()
    if me != victim:
        attempt("first")
        attempt("second")
elif scenario == "others are busy":  # the third argument says who, besides the victim; others may wait in a set
    busy = [int(rank) for rank in sys.argv[3].split(",")]
    among = distrun.global_process_set
    if "in a set" in sys.argv:
        among = distrun.add_process_set(sorted({*range(size)} - {*busy}))
    say("ready")
    if me == victim or me in busy:
        sys.stdin.readline()
    if me != victim:
        attempt("first", among=among if among.included() else distrun.global_process_set)
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
elif scenario == "stopped inside":
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
elif scenario == "given up":  # the others wait for the victim in the first, and all are called to the second at once
    if me == victim:
        busy_with_something_else()
    attempt("first")
    sys.stdin.readline()
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
    assert distrun.allgather([me], "places").tolist() == list(range(size))
else:
    raise AssertionError(scenario)
say("end")
