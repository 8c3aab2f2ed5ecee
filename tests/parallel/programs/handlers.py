"""Signal handlers that come while their own thread waits for an operation: they submit, they fork, they shut down."""

import os
import signal
import sys

import numpy as np
from refusals import refuse

import distrun
from distrun.runtime.world import world

then = sys.argv[1]
distrun.init()
me, size = distrun.rank(), distrun.size()
distrun.barrier()
submitted = []
parent = os.getpid()


def submit() -> None:
    submitted.append(distrun.allreduce_async(np.full(3, me), "from the handler", distrun.Sum))
    submitted.append(distrun.allreduce_async(np.full(3, me), op=distrun.Sum))
    refuse(distrun.UsageError, "a signal handler has interrupted this thread", submitted[0].wait)


def fork() -> None:
    """The child goes on in the wait that this has interrupted, and fails there."""
    child = os.fork()
    if child:
        submitted.append(child)
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)  # if it hangs


if me == 0:
    handler = {"submits": submit, "forks": fork, "shuts down": distrun.shutdown}[then]

    def handle(*_: object) -> None:
        if not world.engine()._state.is_ours():  # too early: on a busy machine a tenth of a second may pass anywhere
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            return
        handler()
        if os.getpid() == parent:
            print("handled", flush=True)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        result = distrun.allreduce(np.full(3, me), "waited for", distrun.Sum)
    except distrun.JobAbortedError as error:
        if os.getpid() != parent:
            os._exit(0 if "forked child" in str(error) or "shutdown" in str(error) else 3)
        print(f"failed: {error}", flush=True)
        sys.exit(0)
    assert os.getpid() == parent, "a child has got a result"
    assert result.tolist() == [size * (size - 1) // 2] * 3
    if then == "submits":
        assert [handle.wait().tolist() for handle in submitted] == [[size * (size - 1) // 2] * 3] * 2
    else:
        assert os.waitpid(submitted[0], 0)[1] == 0
else:
    sys.stdin.readline()
    try:
        distrun.allreduce(np.full(3, me), "waited for", distrun.Sum)
        if then == "submits":
            distrun.allreduce(np.full(3, me), "from the handler", distrun.Sum)
            distrun.allreduce(np.full(3, me), op=distrun.Sum)
    except distrun.JobAbortedError as error:
        print(f"failed: {error}", flush=True)
        sys.exit(0)
for turn in range(20):
    assert distrun.allreduce(np.full(3, turn), op=distrun.Max).tolist() == [turn] * 3
