"""The progress thread of the last rank dies: where, and what its script does then, the arguments say."""

import sys
import threading
import time

import numpy as np

import distrun
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.world import world

where, then = sys.argv[1:]


def dying(ordinary):
    """As before, except in the progress thread."""

    def call(*arguments):
        if threading.current_thread().name == "distrun":
            raise ZeroDivisionError("the test wants it so")
        return ordinary(*arguments)

    return call


distrun.init()
me, size = distrun.rank(), distrun.size()
distrun.barrier()
if me < size - 1:
    try:
        distrun.allreduce(np.ones(3), "never")
    except distrun.JobAbortedError as error:
        print(f"rank {me} heard: {error}", flush=True)
    sys.exit(0)

if where == "between turns":
    Negotiator.hear_alarms = dying(Negotiator.hear_alarms)
else:
    backend = world.engine().backend
    backend.allreduce = dying(backend.allreduce)
handle = distrun.allreduce_async(np.ones(3), "never")
deadline = time.monotonic() + 60
while not handle.poll():  # which wakes the progress thread
    assert time.monotonic() < deadline, "nobody fails it"
    time.sleep(0.001)
if then == "waits":
    handle.wait()
elif then == "handles it":
    try:
        distrun.barrier()
    except distrun.JobAbortedError as error:
        print(f"rank {me} handled: {error}", flush=True)
