"""init and shutdown, again and again, in one process; forked children; memory that outlives its job."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from refusals import refuse

import distrun

NOT_YET = "distrun is not initialised: call distrun.init() first"
for function in (distrun.rank, distrun.size, distrun.local_rank, distrun.topology, distrun.barrier):
    refuse(distrun.NotInitializedError, NOT_YET, function)
for function in (distrun.allreduce, distrun.allgather, distrun.alltoall, distrun.reducescatter):
    refuse(distrun.NotInitializedError, NOT_YET, lambda: function(np.ones(2)))  # noqa: B023
refuse(distrun.NotInitializedError, NOT_YET, lambda: distrun.broadcast_(np.ones(2), 0))
refuse(distrun.NotInitializedError, NOT_YET, lambda: distrun.empty(3))
assert not distrun.is_initialized()
distrun.shutdown()  # does nothing


def resources() -> tuple[int, int, int]:
    """Open descriptors, mappings of segments, threads."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("memfd:distrun (deleted)")
    return len(os.listdir("/proc/self/fd")), maps, threading.active_count()


survivors = []
levels = []
for turn in range(20):
    distrun.init()
    distrun.init()  # does nothing
    assert distrun.is_initialized()
    me, size = distrun.rank(), distrun.size()
    assert distrun.topology().rank == me
    assert distrun.topology().local_rank == distrun.local_rank() <= me
    tensor = distrun.empty(400_000)
    tensor[:] = me + turn
    distrun.allreduce_(tensor, "tensor", distrun.Sum)
    expected = size * turn + size * (size - 1) // 2
    assert (tensor == expected).all()
    assert distrun.allreduce(np.full(300_000, turn), "big", distrun.Max)[-1] == turn
    if turn % 7 == 0:
        survivors.append((tensor, expected))
    if turn % 2:
        with contextlib.suppress(distrun.JobAbortedError):  # others may have left, and noticed that they are missed
            distrun.allreduce_async(np.ones(3), f"{me} left alone")  # which nobody waits for
    distrun.shutdown()
    assert not distrun.is_initialized()
    refuse(distrun.NotInitializedError, NOT_YET, distrun.rank)
    del tensor
    levels.append(resources())
for tensor, expected in survivors:
    assert (tensor == expected).all(), "memory from before shutdown has changed"
# A segment lives as long as an array in it: one mapping, and the descriptor that Python's mmap keeps beside it.
assert levels[-1][0] <= levels[0][0] + len(survivors) - 1, levels
assert levels[-1][1] <= len(survivors), levels
assert levels[-1][2] <= levels[1][2], levels

distrun.init()
tensor, _ = survivors[0]
tensor[:] = 1
assert (distrun.allreduce(tensor, op=distrun.Sum) == size).all()  # from a segment that is gone


# A forked child (a data loader's worker, say) is no rank; it can ask who its parent is, and does no harm.
def in_child(work) -> None:
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def ask_and_try() -> None:
    assert distrun.rank() == me
    assert distrun.size() == size
    text = "a forked child of a rank is not a rank: call collectives in the rank itself"
    refuse(distrun.DistrunError, text, lambda: distrun.allreduce(np.ones(2)))
    refuse(distrun.DistrunError, text, lambda: distrun.allgather(np.ones(2), name="named"))
    refuse(distrun.DistrunError, text, distrun.barrier)


in_child(ask_and_try)
in_child(distrun.shutdown)
handle = distrun.allreduce_async(np.ones(2), "around a fork", distrun.Sum)
child = os.fork()
if not child:
    sys.exit(0)  # an ordinary end, with all that runs at exit
assert os.waitpid(child, 0)[1] == 0
assert handle.wait().tolist() == [size] * 2
subprocess.run([sys.executable, "-c", "pass"], check=True)
for _ in range(10):
    distrun.barrier()
    assert distrun.allreduce(np.full(300_000, me), op=distrun.Max)[0] == size - 1

# shutdown in one thread wakes another that waits.
errors: list[BaseException] = []
waits = threading.Event()
if me == 0:
    handle = distrun.allreduce_async(np.ones(2), "never")

    def wait() -> None:
        waits.set()
        try:
            handle.wait()
        except BaseException as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waits.wait()
    distrun.shutdown()
    waiter.join(120)
    assert not waiter.is_alive(), "shutdown left a thread waiting"
    assert isinstance(errors[0], distrun.JobAbortedError), errors
    assert "shutdown" in str(errors[0]), errors
    refuse(distrun.JobAbortedError, "shutdown", handle.wait)
else:
    text = refuse(distrun.JobAbortedError, "rank 0", lambda: distrun.allreduce(np.ones(2), "another"))
    assert "shutdown()" in text, text
    distrun.shutdown()

# And once more, to show that a failed job is no obstacle; this time the interpreter's end shuts down.
distrun.init()
distrun.barrier()
