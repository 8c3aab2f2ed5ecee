"""Faults inside an allreduce on the GPUs, that is, after the ranks have agreed on it.

The second allreduce goes wrong, in the way that the argument and SIMULATED_NCCL_... say. The host gets a result at
once; it then waits for the device, as `loss.item()` does, which must come to an end; and the next call must tell the
reason. If there is none, `shutdown` must, or the exit status.
"""

from __future__ import annotations

import os
import re
import signal
import sys

import cupy
import numpy as np
import simulator
from short_timeout import give_up_soon

import distrun

how, expected = sys.argv[1:]
distrun.init()
rank = distrun.rank()
cupy.cuda.Device(distrun.device().index).use()
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    array = cupy.asarray(np.full(5000, rank + 1.0, np.float32))
    first = distrun.allreduce(array, name="first", op=distrun.Sum)
    np.testing.assert_allclose(first.get(), 3, 1e-6)  # quantised, or not
    give_up_soon()
    try:
        second = distrun.allreduce(array, name="second", op=distrun.Sum)
        if how == "killed" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "ending":
            sys.exit()
        if how == "leaving":
            distrun.shutdown()
        if how == "breaking" and rank == 1:
            stream.synchronize()
            simulator.break_device(700, distrun.device().index)
            distrun.allreduce(array, name="later", op=distrun.Sum)
        stream.synchronize()
        for _ in range(100_000):  # what is wrong may come to light a moment after the device is free again
            distrun.allreduce(array, name="later", op=distrun.Sum)
            stream.synchronize()
    except distrun.CollectiveError as error:
        text = str(error)
    else:
        raise SystemExit(f"rank {rank} has seen no error")
assert re.search(expected, text), text
print(f"rank {rank} was told", flush=True)
