"""Through MPI: joining and leaving several times, beside a script that uses MPI itself, and a failure at the end."""

import os
import signal
import sys
import threading

import numpy as np

import distrun
from distrun.runtime.world import world


def die(*_):
    """End when rank 0 has sent its only message: Open MPI ends a rank itself that sends one later to a dead rank."""
    backend = world.engine().backend
    sending = getattr(backend, "_links", backend)  # a backend over several hosts has links, MPI's or TCP's
    if hasattr(sending, "_requests"):
        sending._requests.comm.Probe(0)
    os.kill(os.getpid(), signal.SIGKILL)


ending = sys.argv[1]
if ending == "mpi4py first":
    from mpi4py import MPI  # so that it is the script that initialises it
for turn in range(5):
    distrun.init()
    me, size = distrun.rank(), distrun.size()
    assert (distrun.allreduce(np.full(100_000, turn), "sum", distrun.Sum) == turn * size).all()
    from mpi4py import MPI

    assert MPI.COMM_WORLD.allgather(me) == list(range(size))
    if turn < 4:
        distrun.shutdown()
if ending == "script fails" and me == 1:
    raise ValueError("the error of rank 1")
if ending in ("job fails", "mpi4py first"):
    # Rank 0 waits for a rank that leaves, and ends with the error.
    if me == 0:
        distrun.allreduce(np.ones(3), "waits")
    sys.exit(0)
if ending == "dies":  # in the middle of an operation
    if me == 1:
        world.engine().backend.allreduce = die
    # mpirun ends the other rank at once, which is to say first what it knows.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    distrun.allreduce(np.ones(10_000), "dies")  # small, so that it takes one message
if ending == "shutdown elsewhere" and me == 0:
    handle = distrun.allreduce_async(np.ones(3), "waits")
    thread = threading.Thread(target=distrun.shutdown)
    thread.start()
    try:
        handle.wait()
    except distrun.JobAbortedError as error:
        print(f"JobAbortedError: {error}", flush=True)
    thread.join()
