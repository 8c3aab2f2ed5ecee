"""Operations that are right only because of their order on the device.

The argument is a method of distrun's `Gpu` that does not let streams wait for events here: `join` (the user's stream
for the operation), `_queue` (the operation for the user's stream) or `none`.
"""

from __future__ import annotations

import sys

import cupy
import numpy as np
import simulator

import distrun
from distrun.runtime.gpu.driver import Driver

unordered = sys.argv[1]
wait = Driver.wait


def wait_sometimes(self, stream, event):
    if sys._getframe(1).f_code.co_name != unordered:
        wait(self, stream, event)


Driver.wait = wait_sometimes
distrun.init()
assert not simulator.touched(), "init() has touched a GPU"
rank, size, count, steps = distrun.rank(), distrun.size(), 5000, 20
cupy.cuda.runtime.setDevice(distrun.local_rank())
with cupy.cuda.Stream(non_blocking=True) as stream:
    given, kept = cupy.empty(count), cupy.empty((steps, 2, size, count))

    def keep(step, number, array):
        target = kept[step, number].ravel()
        cupy.cuda.runtime.memcpyAsync(target.data.ptr, array.data.ptr, array.nbytes, 4, stream.ptr)

    for step in range(steps):
        given.set(np.full(count, 10.0 * step + rank), stream)
        handle = distrun.allreduce_async(given, name="sum", op=distrun.Sum)
        keep(step, 0, distrun.allgather(given, name="all"))
        keep(step, 1, handle.wait())
    found = kept.get()
ranks = np.arange(size)
for step in range(steps):
    assert (found[step, 0] == (10.0 * step + ranks)[:, None]).all(), step
    assert (found[step, 1, 0] == sum(10.0 * step + ranks)).all(), step
assert simulator.touched() == {distrun.local_rank()}
distrun.shutdown()
print("fine")
