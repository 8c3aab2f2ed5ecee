"""The collectives on arrays of a simulated GPU: cupy's, and others that show themselves to cupy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cupy
import ml_dtypes
import numpy as np
import simulator

import distrun
from distrun.errors import UsageError
from distrun.runtime.world import world
from distrun.runtime.world.capabilities import nccl_built

assert nccl_built() == cupy.cuda.nccl.get_version()
distrun.init()
assert not simulator.touched(), "init() or nccl_built() touched a GPU"
rank, size = distrun.rank(), distrun.size()
own = world.device().index


class Foreign:
    """A foreign array, on a stream of its owner."""

    def __init__(self, array, stream):
        self.array, self.stream = array, stream

    def numpy(self):
        return self.array.get(stream=self.stream)


class Showing(Foreign):
    """A foreign array with numba's interface."""

    is_read_only = False

    @property
    def __cuda_array_interface__(self):
        shown = self.array.__cuda_array_interface__
        return {**shown, "stream": self.stream.ptr, "data": (shown["data"][0], self.is_read_only)}


class Exporting(Foreign):
    """A foreign array with the interface of torch's CUDA tensors."""

    def __dlpack_device__(self):
        return 2, own

    def __dlpack__(self, *, stream, max_version=None, copy=None):
        with self.stream:
            return self.array.__dlpack__(stream=stream, max_version=max_version, copy=copy)


class Elsewhere(Exporting):
    def __dlpack_device__(self):
        return 2, own + 1


def refused(words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except UsageError as error:
        told = str(error)
    else:
        told = "nothing"
    assert words in told, told


def up(values, dtype=np.float32):
    return cupy.asarray(np.asarray(values, dtype))


def same(result, expected):
    assert isinstance(result, cupy.ndarray), type(result)
    shown = result.get()
    expected = np.asarray(expected)
    assert (shown.dtype, shown.shape) == (expected.dtype, expected.shape), (shown, expected)
    assert (shown == expected).all(), (shown, expected)


def ranks(values):
    """Return the results of `function` for the numbers of all ranks."""
    return [np.asarray(values(other)) for other in range(size)]


cupy.cuda.Device(own).use()
base = np.arange(6, dtype=np.float32).reshape(2, 3)
total = sum(base + other for other in range(size))

# One tensor: forms, scales, types
same(distrun.allreduce(up(base + rank), op=distrun.Sum), total)
same(distrun.allreduce(up(base + rank)), total / np.float32(size))
same(distrun.allreduce(up(base), op=distrun.Sum, prescale_factor=2, postscale_factor=0.5), base * size)
same(distrun.allreduce(up(rank, np.int16), op=distrun.Max), np.int16(size - 1))
same(distrun.allreduce(up([True, rank == 0], bool), op=distrun.Min), [True, size == 1])
same(distrun.allreduce(up(np.empty((0, 4)))), np.empty((0, 4), np.float32))
handle = distrun.allreduce_async(up(base + rank), name="x", op=distrun.Sum)
same(distrun.synchronize(handle), total)
assert distrun.poll(handle) in (True, False)
mine = up(base + rank)
assert distrun.allreduce_(mine, op=distrun.Sum) is mine
same(mine, total)
strided = up(np.arange(12).reshape(2, 6))[:, ::2]
same(distrun.allreduce(strided, op=distrun.Sum), np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2] * size)
whole = up(np.arange(12).reshape(2, 6))
assert distrun.synchronize(distrun.allreduce_async_(whole[:, ::2], op=distrun.Sum)).shape == (2, 3)
expected = np.arange(12, dtype=np.float32).reshape(2, 6)
expected[:, ::2] *= size
same(whole, expected)
refused("has no meaning for complex64", distrun.allreduce, up([1j], np.complex64), op=distrun.Max)

bfloat16 = np.dtype(ml_dtypes.bfloat16)
same(distrun.allreduce(up(base + rank, bfloat16), op=distrun.Sum), total.astype(bfloat16))
half = up(base, bfloat16)
assert distrun.allreduce_(half[:, 1:], op=distrun.Sum).dtype == bfloat16
expected = base.astype(bfloat16)
expected[:, 1:] *= size
same(half, expected)

# Groups: several dtypes, and the host's beside the GPU's
given = [up(base + rank), up([rank], np.int32), np.full(2, rank, np.float32), up(base[0])]
for results in (
    distrun.grouped_allreduce(given, name="mixed", op=distrun.Sum),
    distrun.grouped_allreduce_(given, op=distrun.Sum),
):
    same(results[0], total)
    same(results[1], [np.int32(sum(range(size)))])
    assert type(results[2]) is np.ndarray
    assert (results[2] == sum(range(size))).all()
    same(results[3], base[0] * size)
assert all(one is other for one, other in zip(results, given, strict=True))

# Moving rows, which may be empty
rows = ranks(lambda other: np.full((other + 1, 2), other, np.float32))
same(distrun.allgather(up(rows[rank])), np.concatenate(rows))
one, none = distrun.grouped_allgather([up(rows[rank]), up(np.empty((rank + 1, 0)))], name="rows")
same(one, np.concatenate(rows))
same(none, np.empty((sum(range(size + 1)), 0), np.float32))
same(distrun.alltoall(up(np.full((2 * size, 1), rank))), np.repeat(np.arange(size), 2)[:, None].astype(np.float32))
splits = np.array([1] + [2] * (size - 1), np.int32)
for told in (splits, up(splits, np.int32), list(splits)):
    received, counts = distrun.alltoall(up(np.full((splits.sum(), 2), rank)), told)
    each = 1 if rank == 0 else 2
    same(received, np.repeat(np.arange(size, dtype=np.float32), each)[:, None].repeat(2, 1))
    assert counts.tolist() == [each] * size
whole = np.arange(2 * (2 * size + 1), dtype=np.float32).reshape(-1, 2)
start = rank * 2 + min(rank, 1)
part = whole[start : start + 2 + (rank == 0)]
same(distrun.reducescatter(up(whole), op=distrun.Sum), part * size)
same(distrun.grouped_reducescatter([up(whole), up(whole)])[1], part)
refused("divides the first dimension", distrun.allgather, up(1))

# Broadcasts
last = size - 1
source = up(base + rank)
same(distrun.broadcast(source, last), base + last)
same(source, base + rank)
assert distrun.broadcast_(source, 0, name="b") is source
same(source, base)
same(distrun.broadcast_async(up(rank, np.uint8), last).wait(), np.uint8(last))
refused("root_rank=99 is not a rank", distrun.broadcast, source, 99)

# Other streams than the default one: what is queued there is waited for
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    mine = up(base + rank)
    same(distrun.allreduce(mine, op=distrun.Sum), total)

# Arrays of others, with another stream as cupy's current one; in a thread whose current GPU is another rank's
for kind in (Showing, Exporting):
    with stream:
        theirs = kind(up(base + rank), stream)
    with cupy.cuda.Stream(non_blocking=True):
        same(distrun.allreduce(theirs, op=distrun.Sum), total)
        assert (theirs.numpy() == base + rank).all()
        assert distrun.allreduce_(theirs, op=distrun.Sum) is theirs
        assert (theirs.numpy() == total).all()
        with stream:
            theirs = kind(up(np.arange(12))[1::2], stream)
        assert distrun.broadcast_(theirs, 0) is theirs
        assert distrun.grouped_allreduce_([theirs], op=distrun.Sum) == [theirs]
        assert (theirs.numpy() == np.arange(12)[1::2] * size).all()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(distrun.broadcast_, theirs, 0).result() is theirs
        same(
            thread.submit(distrun.allgather, theirs).result(),
            np.tile(np.arange(12, dtype=np.float32)[1::2] * size, size),
        )
with stream:
    fixed = Showing(up(base), stream)
    fixed.is_read_only = True
same(distrun.allreduce(fixed), base)
refused("read-only", distrun.allreduce_, fixed)
refused(f"this rank's GPU is {own}", distrun.allreduce, Elsewhere(up(base), stream))
refused("not list", distrun.allreduce_, [1.0])

# Numbers that cupy does not take as numpy arrays still travel through the host
assert type(distrun.allreduce(1.0)) is np.ndarray
assert type(distrun.allreduce([np.float32(1)])) is np.ndarray

# All ranks on the GPU, or none
if size > 1:
    try:
        distrun.allreduce(base if rank == 0 else up(base), name="apart")
    except distrun.MismatchError as error:
        told = str(error)
    assert "device" in told, told

memory = distrun.communication_memory()
assert all(type(nbytes) is int and nbytes > 0 for nbytes in memory.values()), memory
assert simulator.touched() == {own}, simulator.touched()
if own:  # an array that was made where cupy makes them when nobody says where
    cupy.cuda.Device(0).use()
    refused(f"call cupy.cuda.Device({own}).use() before", distrun.allreduce, up(base))
distrun.shutdown()
assert not simulator.violations(), simulator.violations()
print("fine")
