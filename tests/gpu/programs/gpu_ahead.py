"""A host that runs far ahead of its GPU does not hold the memory of everything it has queued."""

from __future__ import annotations

import cupy
import numpy as np
from simulator import blocks

import distrun

distrun.init()
cupy.cuda.Device(distrun.device().index).use()
most = 0
with cupy.cuda.Stream(non_blocking=True) as stream:
    array = cupy.asarray(np.ones(1 << 18, np.float32))
    for _ in range(20):
        result = distrun.allreduce(array, name="again")
        most = max(most, blocks.allocated())
    stream.synchronize()
    assert (result.get() == 1).all()
assert most <= 4 * array.nbytes, most
print("fine", flush=True)
