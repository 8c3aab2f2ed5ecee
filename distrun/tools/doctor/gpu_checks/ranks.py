"""A program for ranks with a GPU each: an allreduce through NCCL, whose bus bandwidth rank 0 prints as a JSON object.

    {"ranks": NUMBER, "bytes": NUMBER, "rate": BYTES PER SECOND, "wrong": [RANK, ..]}

"rate" counts the bytes that each rank has to send at least, so that it compares with the speed of a link. "wrong" are
the ranks that got a wrong sum.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import distrun

_BYTES = 256 << 20
_REPEATED = 10


def main(nbytes: int = _BYTES) -> None:
    """Measure, as one of the ranks."""
    import cupy

    distrun.init()
    device = cupy.cuda.Device(distrun.device().index)
    device.use()
    ranks = distrun.size()
    numbers = np.arange(nbytes // 4, dtype=np.float32) % 1000
    array = cupy.asarray(numbers + np.float32(distrun.rank()))
    result = distrun.allreduce(array, op=distrun.Sum, name="first")
    is_wrong = not np.array_equal(cupy.asnumpy(result), numbers * ranks + ranks * (ranks - 1) // 2)
    distrun.barrier()
    start = time.perf_counter()
    for _ in range(_REPEATED):
        result = distrun.allreduce(array, op=distrun.Sum, name="measured")
    device.synchronize()
    seconds = (time.perf_counter() - start) / _REPEATED
    found = distrun.allgather(np.array([[seconds, is_wrong]]))
    if not distrun.rank():
        rate = 2 * (ranks - 1) / ranks * nbytes / float(found[:, 0].max())
        wrong = [rank for rank in range(ranks) if found[rank, 1]]
        print(json.dumps({"ranks": ranks, "bytes": nbytes, "rate": rate, "wrong": wrong}))
    distrun.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
