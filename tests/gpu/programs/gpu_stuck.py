"""NCCL does not return from queueing the second allreduce, as when it connects GPUs and a rank does not come.

All ranks get an error. The argument says who queues: `main`, the thread that waits for the result, or `engine`,
distrun's own; or that the ranks `leave` meanwhile.
"""

from __future__ import annotations

import re
import sys
import threading

import cupy
import numpy as np
from short_timeout import give_up_soon

import distrun
from distrun.runtime.engine import engine

NcclCommunicator = cupy.cuda.nccl.NcclCommunicator
all_reduce, abort = NcclCommunicator.allReduce, NcclCommunicator.abort
is_aborted, calls = threading.Event(), []


def stuck(self, *args):
    calls.append(threading.current_thread())
    if len(calls) == 1:
        return all_reduce(self, *args)
    is_aborted.wait(60)
    raise RuntimeError("NCCL_ERROR_INTERNAL_ERROR: internal error")


def ending(self):
    is_aborted.set()
    abort(self)


NcclCommunicator.allReduce, NcclCommunicator.abort = stuck, ending
(who,) = sys.argv[1:]
distrun.init()
rank = distrun.rank()
cupy.cuda.Device(distrun.device().index).use()
array = cupy.asarray(np.full(1000, rank + 1.0, np.float32))
assert (distrun.allreduce(array, name="first", op=distrun.Sum).get() == 3).all()
give_up_soon()
try:
    if who == "main":
        distrun.allreduce(array, name="second", op=distrun.Sum)
    else:
        handle = distrun.allreduce_async(array, name="second", op=distrun.Sum)
        while len(calls) < 2:
            pass
        if who == "leave":
            engine.PARTING = 0.5
            distrun.shutdown()
        handle.wait()
except distrun.CollectiveError as error:
    text = str(error)
else:
    raise SystemExit(f"rank {rank} has seen no error")
if who == "leave":
    assert "distrun.shutdown() was called" in text, text
else:
    assert re.search(r"gave up after \d+ s: allreduce 'second': NCCL does not come|failed: ", text), text
assert (calls[1] is threading.main_thread()) == (who == "main"), calls
print(f"rank {rank} was told", flush=True)
