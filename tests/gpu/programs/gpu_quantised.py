"""Allreduces of cupy arrays that travel quantised between hosts: `gpu_quantised.py [exact|doubles]`.

With `exact`, where there are more than two hosts, arrays in the hosts' memory are exchanged in the same way, so they
have the same bits. With `doubles`, only those that are left as they are.
Runs on the simulated GPU, where it also looks at what NCCL sends, and on real ones.
"""

from __future__ import annotations

import sys

import cupy
import numpy as np

import distrun
from distrun import Average, Sum
from distrun.contract.settings import current

simulator = sys.modules.get("simulator")
distrun.init()
rank, size = distrun.rank(), distrun.size()
cupy.cuda.Device(distrun.device().index).use()
WIRE = current().wire_dtype
ROUNDING = {"int8": 1 / 254, "int4": 5 / 18}[WIRE]  # of the largest of 256
IS_EXACT = sys.argv[1:] == ["exact"]


def mine(count, seed=0, other=rank):
    return np.random.default_rng([other, seed]).standard_normal(count, np.float32)


def gathered(array):
    return distrun.allgather(np.asarray(array)[None], name="gathered")


def check(found, seed=0, op=Sum, factor=1.0):
    """Check a result for the arrays of all ranks."""
    result = found.get()
    everybody = [mine(result.size, seed, other).reshape(result.shape) for other in range(size)]
    assert (gathered(result.view(np.uint32)) == result.view(np.uint32)).all(), "the ranks have different bits"
    expected = np.sum(everybody, 0, np.float64) * factor / (size if op is Average else 1)
    most = sum(np.abs(each).max() for each in everybody) * factor / (size if op is Average else 1)
    error = np.abs(result - expected).max()
    if result.size < 4096:
        assert error <= 1e-6 * most, error
    else:
        assert 1e-4 * most < error <= 2.4 * most * ROUNDING, (error, most)


def sent():
    """Return how often this rank has sent bytes by NCCL; on a real GPU nobody knows."""
    return sum(call.name == "send" for call in simulator.log()) if simulator else None


# Doubles stay as they are, through NCCL and through the hosts' memory
doubles = mine(5000).astype(np.float64)
total = np.sum([mine(5000, 0, other) for other in range(size)], 0, np.float64)
assert np.abs(distrun.allreduce(cupy.asarray(doubles), op=Sum).get() - total).max() < 1e-12
if sys.argv[1:] == ["doubles"]:
    print("fine")
    sys.exit()

# One tensor, of several sizes; the input stays as it is
for count in (4095, 4096, 8191, 100_001):
    given = cupy.asarray(mine(count))
    for op, factor in ((Sum, 1.0), (Average, 1.0), (Sum, 0.5)):
        before = sent()
        found = distrun.allreduce(given, op=op, prescale_factor=2 * factor, postscale_factor=0.5)
        check(found, op=op, factor=factor)
        assert simulator is None or (sent() > before) == (count >= 4096)
    assert (given.get() == mine(count)).all()
    inside = cupy.asarray(mine(count))
    assert distrun.allreduce_(inside, op=Sum) is inside
    check(inside)

# Several at once, in a group and each by itself: small ones are as exact as without the large ones beside them
counts = (5000, 7, 4096, 4095, 20_000, 300)
for results in (
    distrun.grouped_allreduce([cupy.asarray(mine(count, count)) for count in counts], name="group", op=Sum),
    [
        handle.wait()
        for handle in [
            distrun.allreduce_async(cupy.asarray(mine(count, count)), name=f"{count}", op=Sum) for count in counts
        ]
    ],
):
    for result, count in zip(results, counts, strict=True):
        check(result, count)

# Parts of a sum, in a group where one tensor is small; they are quantised if all hosts have as many ranks
is_even = len(set(distrun.allgather_object(distrun.local_size()))) == 1
for shape in ((5000,), (1001, 5)):
    rows = [shape[0] // size + (other < shape[0] % size) for other in range(size)]
    own = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    before = sent()
    whole = cupy.asarray(mine(shape[0] * 5)[: np.prod(shape)].reshape(shape))
    large, small = distrun.grouped_reducescatter([whole, cupy.asarray(np.ones(99, np.float32))], op=Sum)
    assert simulator is None or (sent() > before) == is_even
    everybody = [mine(shape[0] * 5, 0, other)[: np.prod(shape)].reshape(shape) for other in range(size)]
    error = np.abs(large.get() - np.sum(everybody, 0, np.float64)[own]).max()
    assert (1e-4 < error < 1.2 * sum(np.abs(each).max() for each in everybody) * ROUNDING) or not is_even, error
    assert is_even or error < 1e-5
    assert (small.get() == size).all()

# Other types, and other operators
whole = np.arange(5000) + rank
assert (distrun.allreduce(cupy.asarray(whole), op=Sum).get() == size * np.arange(5000) + sum(range(size))).all()
largest = distrun.allreduce(cupy.asarray(mine(5000)), op=distrun.Max).get()
assert (largest == np.max([mine(5000, 0, other) for other in range(size)], 0)).all()

# What is not finite stays so, in its block, on all ranks
for odd in (np.inf, -np.inf, np.nan):
    values = np.ones(4096 * 2, np.float32)
    if rank == size - 1:
        values[1000] = odd
    result = distrun.allreduce(cupy.asarray(values), op=Sum).get()
    assert not np.isfinite(result[1000])
    assert np.isfinite(result).sum() >= result.size - 256
    assert (gathered(result.view(np.uint32)) == result.view(np.uint32)).all()

# The bits of arrays in the hosts' memory
if IS_EXACT:
    for count in (10_000, 100_001):
        for op in (Sum, Average):
            on_gpu = distrun.allreduce(cupy.asarray(mine(count, 5)), op=op, postscale_factor=0.3)
            on_host = distrun.allreduce(mine(count, 5), op=op, postscale_factor=0.3)
            assert (on_gpu.get().view(np.uint32) == on_host.view(np.uint32)).all()
    parts = [mine(count, 6) for count in counts]
    on_gpu = distrun.grouped_allreduce([cupy.asarray(part) for part in parts], name="both", op=Sum)
    on_host = distrun.grouped_allreduce(parts, name="both on the host", op=Sum)
    for one, other in zip(on_gpu, on_host, strict=True):
        if one.size >= 4096:
            assert (one.get().view(np.uint32) == other.view(np.uint32)).all()

distrun.shutdown()
assert simulator is None or not simulator.violations()
print("fine")
