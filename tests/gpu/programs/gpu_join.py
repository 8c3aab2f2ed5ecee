"""Joining while the other ranks go on with arrays on their GPUs."""

from __future__ import annotations

import cupy
import numpy as np

import distrun

distrun.init()
rank, size = distrun.rank(), distrun.size()
cupy.cuda.Device(distrun.device().index).use()


def on_gpu(*values):
    return cupy.asarray(np.array(values, np.float32))


for turn in range(2):  # in the second turn all ranks have connected their GPUs before
    if turn:
        assert distrun.allreduce(on_gpu(1, 2), op=distrun.Sum).get().tolist() == [size, 2 * size]
    if rank == size - 1:
        pair = distrun.grouped_allreduce([on_gpu(3, 4), on_gpu(5)])
        assert [each.get().tolist() for each in pair] == [[3, 4], [5]]
        assert distrun.allreduce(on_gpu(3, -4), op=distrun.Max).get().tolist() == [3, -4]
        assert distrun.allgather(on_gpu(1, 2)).get().tolist() == [1, 2]
        assert distrun.broadcast(on_gpu(7), rank).get().tolist() == [7]
        shares = [3 // size + (each < 3 % size) for each in range(size)]
        rows = distrun.reducescatter(on_gpu(1, 2, 3), op=distrun.Sum).get().tolist()
        assert rows == [1, 2, 3][sum(shares[:rank]) : sum(shares[: rank + 1])]
        assert distrun.allreduce(on_gpu(2), op=distrun.Adasum).get().tolist() == [2]
    assert 0 <= distrun.join() < size
assert distrun.allreduce(on_gpu(1), op=distrun.Sum).get().tolist() == [size]
print("fine")
