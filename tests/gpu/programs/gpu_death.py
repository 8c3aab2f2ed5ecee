"""Rank 1 is killed while rank 0's GPU waits for it inside an allreduce; rank 0 must get away. Needs a real GPU.

Rank 1's part is held up by a kernel that spins for a minute, so that it can never come to the allreduce it has agreed
to.
"""

from __future__ import annotations

import os
import signal

import cupy

import distrun

SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    long long begun = clock64();
    while (clock64() - begun < cycles) {}
}
"""

distrun.init()
cupy.cuda.Device(distrun.device().index).use()
array = cupy.ones(1 << 20, cupy.float32)
with cupy.cuda.Stream(non_blocking=True) as stream:
    distrun.allreduce(array, name="first", op=distrun.Sum)
    stream.synchronize()
    if distrun.rank() == 1:
        cupy.RawKernel(SPIN, "spin")((1,), (1,), (100_000_000_000,))
    try:
        distrun.allreduce(array, name="second", op=distrun.Sum)
        if distrun.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        stream.synchronize()
        distrun.allreduce(array, name="third", op=distrun.Sum)
    except distrun.CollectiveError as error:
        text = str(error)
    else:
        raise SystemExit("rank 0 has seen no error")
assert "rank 1" in text, text
print("rank 0 was told", flush=True)
