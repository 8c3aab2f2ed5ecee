"""Uses and misuses of arrays on GPUs: settings, missing libraries, ranks that end early. The first argument chooses
one."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time

import cupy
import numpy as np
from short_timeout import give_up_soon

import distrun
from distrun.runtime.gpu import in_flight
from distrun.runtime.world import world

how, *expected = sys.argv[1:]
told: list[str] = []


class Listener(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())


logging.getLogger("distrun").addHandler(Listener())


def array(values=(1.0, 2.0)):
    return cupy.asarray(np.asarray(values, np.float32))


def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except distrun.DistrunError as error:
        return str(error)
    return "no error"


def instead_of_connecting(do):
    """Do what the argument says when NCCL connects rank 1 with the others."""
    if rank == 1:
        cupy.cuda.nccl.NcclCommunicator = lambda *_: do()


def check(condition, *what):
    if not condition:
        raise SystemExit(f"rank {rank}, {how}: {what}")


def fail():
    raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")


distrun.init()
give_up_soon()
rank = distrun.rank()
cupy.cuda.Device(distrun.device().index).use()

if how == "without NCCL on rank 1":
    cupy.cuda.nccl.available = rank != 1
if how in ("refused", "without cupy"):  # everywhere, twice, and what does not need GPUs goes on
    on_gpu = array()
    if how == "without cupy":
        sys.modules["cupy"] = None
    for _ in range(2):
        text = error_of(distrun.allreduce, on_gpu)
        check(re.search(expected[0], text), text)
    check((distrun.allreduce(np.ones(2)) == 1).all())
elif how in ("told", "without NCCL on rank 1"):  # once, by rank 0
    for _ in range(2):
        check((distrun.allreduce(array()).get() == [1, 2]).all())
    check([bool(re.search(expected[0], text)) for text in told] == [True] * (rank == 0), told)
    check(set(distrun.communication_memory()) == {"pinned staging"}, distrun.communication_memory())
elif how == "integers":  # averages go through the host's memory, which computes them as for its own
    values = np.array([-7, 5, 8], np.int32) + rank
    check((distrun.allreduce(cupy.asarray(values)).get() == distrun.allreduce(values)).all())
    check(distrun.communication_memory()["pinned staging"] > 0)
    check(told == [], told)
elif how == "killed while connecting":
    instead_of_connecting(lambda: os.kill(os.getpid(), signal.SIGKILL))
    text = error_of(distrun.allreduce, array(), name="first")
    check(re.search(r"connects the GPUs of 2 ranks .*: rank 1 .*(was killed|is gone)", text), text)
elif how in ("failing to connect", "never connected"):
    instead_of_connecting(fail if how.startswith("failing") else lambda: time.sleep(1000))
    for _ in range(2):
        text = error_of(distrun.allreduce, array(), name="first")
        check(re.search(expected[0], text), text)
elif how == "again":
    for _ in range(3):
        check((distrun.allreduce(array()).get() == [1, 2]).all())
        distrun.shutdown()
        check("call distrun.init() first" in error_of(distrun.allreduce, array()))
        for thread in threading.enumerate():
            if thread.name.startswith("distrun"):
                thread.join(20)  # it may have said that it is done, and be about to end
                check(not thread.is_alive(), thread.name)
        distrun.init()
elif how == "leaving":  # what is in flight at the end is waited for
    handles = [distrun.allreduce_async(array(), name=f"last {number}") for number in range(20)]
    for handle in handles:
        distrun.synchronize(handle)
elif how == "left behind":  # a rank leaves that has submitted what the other begins, and has not begun it itself
    in_flight.PARTING_TIMEOUT = 0.5
    distrun.allreduce(array(), name="last")
    engine = world.engine()
    if rank == int(expected[0]):
        handle = distrun.allreduce_async(array(), name="last")
        while not handle.submitted:
            time.sleep(0.01)
        distrun.shutdown()
        check("distrun.shutdown() was called" in error_of(handle.wait))
    else:
        while not engine.local_group.missing:
            time.sleep(0.01)
        text = error_of(distrun.allreduce, array(), name="last")
        cupy.cuda.Device().synchronize()
        text = error_of(distrun.allreduce, array(), name="last") if text == "no error" else text
        check(re.search(r"allreduce 'last': rank \d .* has left: it called shutdown", text), text)
elif how == "raising":
    distrun.allreduce(array())
    if rank == 1:
        raise ValueError("a mistake")
    text = error_of(distrun.allreduce, array(), name="loss")
    check(re.search(r"allreduce 'loss': rank 1 .* has left: its script ended with ValueError: a mistake", text), text)
else:
    raise SystemExit(f"{how}: not known")
print(f"rank {rank} is as expected", flush=True)
