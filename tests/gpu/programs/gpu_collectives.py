"""Every collective with every dtype and operator on cupy arrays, against numpy. The arguments are numbers of
elements."""

from __future__ import annotations

import sys

import cupy
import ml_dtypes  # noqa: F401 - tells numpy of bfloat16
import numpy as np

import distrun
from distrun import Average, Max, Min, Product, Sum

sizes = [int(word) for word in sys.argv[1:]]
distrun.init()
rank, size = distrun.rank(), distrun.size()
cupy.cuda.Device(distrun.device().index).use()
checked = 0

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
REDUCE = {Sum: np.add, Average: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}


def data(dtype: str, count: int, other: int) -> np.ndarray:
    """Return the elements of rank `other`: small whole numbers, so that sums and products are exact in every type."""
    values = np.random.default_rng(1000 * count + other).integers(0, 4, count)
    if dtype.startswith("int"):
        values -= 2
    return values.astype(dtype) * (1 + 1j if dtype in COMPLEX else 1) if dtype != "bool" else values > 1


def up(array: np.ndarray) -> cupy.ndarray:
    return cupy.asarray(array)


def same(result: cupy.ndarray, expected: np.ndarray, what: object) -> None:
    global checked
    shown = result.get()
    assert (shown.dtype, shown.shape) == (expected.dtype, expected.shape), (
        what,
        shown.dtype,
        shown.shape,
        expected.shape,
    )
    if not (shown == expected).all():
        wrong = np.flatnonzero((shown != expected).ravel())
        raise AssertionError(f"{what}: {wrong.size} of {shown.size} wrong, at {wrong[:5]}: {shown.flat[wrong[:5]]}")
    checked += 1


def reduced(dtype: str, op: int, arrays: list[np.ndarray]) -> np.ndarray:
    """Combine the ranks' arrays as distrun defines it."""
    if dtype == "bool":
        return np.logical_and.reduce(arrays) if op in (Product, Min) else np.logical_or.reduce(arrays)
    wide = {"i": "int64", "u": "uint64"}.get(np.dtype(dtype).kind, dtype)
    total = REDUCE[op].reduce([array.astype(wide) for array in arrays])
    if op is Average:
        total = np.trunc(total / size) if wide != dtype or np.dtype(dtype).kind in "iu" else total / size
    return total.astype(dtype)


for dtype in ("bool", *INTEGERS, *FLOATS, *COMPLEX):
    for count in sizes:
        everybody = [data(dtype, count, other) for other in range(size)]
        mine = up(everybody[rank])
        for op in REDUCE:
            if dtype in COMPLEX and op in (Min, Max):
                continue
            what = ("allreduce", dtype, count, str(op))
            same(distrun.allreduce(mine, name="out", op=op), reduced(dtype, op, everybody), what)
            inside = up(everybody[rank])
            same(distrun.allreduce_(inside, name="in", op=op), reduced(dtype, op, everybody), what)
        same(mine, everybody[rank], ("the input stays", dtype, count))
        for root in {0, size - 1}:
            same(distrun.broadcast(mine, root, name="from"), everybody[root], ("broadcast", dtype, count, root))
        parts = [array[: count // (other + 1)] for other, array in enumerate(everybody)]
        same(distrun.allgather(up(parts[rank]), name="all"), np.concatenate(parts), ("allgather", dtype, count))
        total = reduced(dtype, Sum, everybody)
        shares = [count // size + (other < count % size) for other in range(size)]
        start = sum(shares[:rank])
        scattered = distrun.reducescatter(mine, name="scattered", op=Sum)
        same(scattered, total[start : start + shares[rank]], ("reducescatter", dtype, count))
        splits = [count // size] * (size - 1) + [count - count // size * (size - 1)]
        received, counts = distrun.alltoall(mine, splits, name="to all")
        expected = [array[sum(splits[:rank]) :][: splits[rank]] for array in everybody]
        same(received, np.concatenate(expected), ("alltoall", dtype, count))
        assert list(counts) == [splits[rank]] * size

for count in sizes:  # several at once, which are fused, and factors
    everybody = [[data("float32", count + place, other) for place in range(7)] for other in range(size)]
    mine = [up(array) for array in everybody[rank]]
    options = {"op": Sum, "prescale_factor": 0.5, "postscale_factor": 4.0}
    handles = [distrun.allreduce_async(array, name=f"{place}", **options) for place, array in enumerate(mine)]
    grouped = distrun.grouped_allreduce(mine, name="group", **options)
    for place, (handle, result) in enumerate(zip(handles, grouped, strict=True)):
        expected = 2 * sum(array[place] for array in everybody)
        same(handle.wait(), expected, ("fused", count, place))
        same(result, expected, ("grouped", count, place))

print(f"rank {rank}: {checked} results are right")
