"""Joining: ranks with data of unequal lengths, and every operation that goes on meanwhile."""

import ml_dtypes
import numpy as np
from refusals import refuse

import distrun

distrun.init()
rank, size = distrun.rank(), distrun.size()


def uneven(process_set=distrun.global_process_set):
    """Rank r has r + 1 batches: an average is over the ranks that have one."""
    for step in range(rank + 1):
        having = [r for r in process_set.ranks if r >= step]
        result = distrun.allreduce(np.full(5, rank, np.float64), process_set=process_set)
        assert np.allclose(result, np.mean(having)), (step, result)
    last = distrun.join(process_set)
    assert last == max(process_set.ranks), last


for _ in range(3):
    uneven()
# What was unnamed before and after is matched by its order.
assert distrun.allreduce(np.ones(2), op=distrun.Sum).tolist() == [size] * 2

OPS = (distrun.Sum, distrun.Average, distrun.Min, distrun.Max, distrun.Product)
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")


def alone(device_of=lambda array: array):
    """The last rank is alone with its data: whatever it reduces comes back as it was."""
    for name in DTYPES:
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        for count in (0, 3, 70_000):
            given = (np.arange(count) % 2 - (0 if dtype.kind in "ub" else 1)).astype(dtype)
            for op in OPS:
                if op in (distrun.Min, distrun.Max) and dtype.kind == "c":
                    continue
                assert (distrun.allreduce(given, op=op) == given).all(), (op, name, count)
            assert (distrun.grouped_allreduce([given, given[:1]], name=f"pair.{name}")[0] == given).all()
            assert (distrun.allgather(given.reshape(-1, 1)) == given.reshape(-1, 1)).all()
            assert (distrun.broadcast(given, rank) == given).all()
            rows = distrun.reducescatter(given, op=distrun.Sum)
            shares = [len(given) // size + (r < len(given) % size) for r in range(size)]
            start = sum(shares[:rank])
            assert (rows == given[start : start + shares[rank]]).all()
    distrun.barrier()
    assert distrun.allgather_object("here") == ["here"]


distrun.barrier()
if rank == size - 1:
    alone()
    refuse(distrun.MismatchError, "joined, and the rows", lambda: distrun.alltoall(np.ones((size, 2))))
    refuse(distrun.MismatchError, "its root, rank 0, has joined", lambda: distrun.broadcast(np.ones(2), 0))
    scaled = {"op": distrun.Min, "prescale_factor": 2.0}
    refuse(distrun.MismatchError, "no neutral element", lambda: distrun.allreduce(np.ones(2), **scaled))
    assert distrun.allreduce(np.ones(2), op=distrun.Sum, prescale_factor=2.0).tolist() == [2.0, 2.0]
distrun.join()

# A joined set leaves the world free.
if size > 2:
    some = distrun.add_process_set(range(1, size))
    if some.included():
        uneven(some)
    assert distrun.allreduce(np.ones(1), op=distrun.Sum) == size
