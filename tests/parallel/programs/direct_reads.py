"""Allreduce of ordinary arrays that the ranks read out of each other's memory, against numpy.

The argument says whether all ranks may do so: if one is not allowed to, or does not want it, none does.
"""

import os
import random
import sys
from unittest import mock

import numpy as np
import reference

import distrun
from distrun.runtime.backends import direct_reads
from distrun.runtime.shared_memory import peer_memory
from examples import DTYPES, SameEverywhere, dtype_of, process_sets

OPS = (distrun.Average, distrun.Sum, distrun.Min, distrun.Max, distrun.Product)
CHUNK = 512 << 10
LIMIT = 256 << 10  # bytes from which a result is an array of `distrun.empty`

permission = sys.argv[1]
if permission == "unwanted" and os.environ["DISTRUN_RANK"] == "1":
    os.environ["DISTRUN_READ_PEERS"] = "0"
distrun.init()
rank, size = distrun.rank(), distrun.size()
choice = random.Random(7)  # the same on all ranks
read, allreduce = peer_memory.read, direct_reads.DirectReads.allreduce


def refuse(process, address, target):
    if process != os.getpid():
        raise PermissionError(1, "Operation not permitted")
    read(process, address, target)


def numbers(count, dtype, of):
    generator = np.random.default_rng([count, of])
    return generator.integers(0, 3, count).astype(dtype)


def ordinary(values):
    """The values in memory of their own that begins anywhere in a page."""
    room = np.empty(values.size + 1000, values.dtype)
    start = 13 * (rank + 1)
    room[start : start + values.size] = values
    return room[start : start + values.size]


def check(number, process_set):
    dtype = dtype_of(choice.choice(DTYPES))
    op = choice.choice(OPS if dtype.kind != "c" else (distrun.Average, distrun.Sum))
    is_new = choice.random() < 0.3  # then the result is ordinary memory, too, only if it is not large
    nbytes = LIMIT - 4096 if is_new else choice.choice([2 * CHUNK - 64, 2 * CHUNK, 3 * CHUNK + 992, 5 << 20])
    count = nbytes // dtype.itemsize - choice.randrange(3)
    if not process_set.included():
        return
    parts = [numbers(count, dtype, of) for of in range(process_set.size())]
    array = ordinary(parts[process_set.rank()])
    if is_new:
        array.flags.writeable = False
        result = distrun.allreduce(array, f"new {number}", op, process_set=process_set)
        assert (array == parts[process_set.rank()]).all()
    else:
        result = distrun.allreduce_(array, f"in place {number}", op, process_set=process_set)
        assert result is array
    reference.check(result, reference.reduce(parts, op, process_set=process_set), exact=op != distrun.Average)
    same.add(result, process_set)


same = SameEverywhere()
reference.hosts()
with (
    mock.patch.object(direct_reads, "SMALLEST", 0),
    mock.patch.object(peer_memory, "is_in_huge_pages", return_value=True),  # which are not to be had everywhere
    mock.patch.object(peer_memory, "read", refuse if permission == "refused" and rank == 1 else read),
    mock.patch.object(direct_reads.DirectReads, "allreduce", autospec=True, side_effect=allreduce) as reading,
):
    sets = process_sets() or [distrun.global_process_set]
    for number in range(40):
        check(number, sets[number % len(sets)])
    same.check()
    if permission == "allowed":
        assert reading.call_count >= 20 / len(sets), reading.call_count

    # If one of the arrays is elsewhere, all are staged.
    array = distrun.empty(CHUNK) if rank == size - 1 else np.empty(CHUNK, np.float32)
    array[:] = rank
    before = reading.call_count
    assert (distrun.allreduce_(array, "one is shared", distrun.Sum) == sum(range(size))).all()
    assert reading.call_count == before

    for process_set in sets[1::2]:
        distrun.remove_process_set(process_set)
    if permission != "allowed":
        array = ordinary(numbers(CHUNK, np.float32, rank))
        before = reading.call_count
        distrun.allreduce_(array, "not read", distrun.Sum)
        assert reading.call_count == before
