"""Arrays larger than staging, of ordinary memory and of `distrun.empty`, on every collective against numpy."""

import random

import numpy as np

import distrun

STAGE = 1 << 20

distrun.init()
rank, size = distrun.rank(), distrun.size()
choice = random.Random(1)  # the same on all ranks


def numbers(count, dtype, of):
    return (np.arange(count) % 97 + of).astype(dtype)


def placed(values, is_shared):
    array = distrun.empty(values.size, values.dtype) if is_shared else np.empty_like(values)
    array[:] = values
    return array


for round_ in range(12):
    dtype = np.dtype(choice.choice(["uint8", "float32", "float64"]))
    shared = [choice.random() < 0.3 for _ in range(size)]
    piece = STAGE // dtype.itemsize
    count = choice.choice([piece - 1, piece, piece + 1, 2 * piece, 3 * piece + 17])
    name = f"round {round_}"

    whole = [numbers(count, dtype, of) for of in range(size)]
    total = np.sum(whole, axis=0, dtype=dtype)
    array = placed(whole[rank], shared[rank])
    assert (distrun.allreduce(array, f"{name} new", distrun.Sum) == total).all()
    assert (array == whole[rank]).all()

    part = distrun.reducescatter(array, f"{name} part", distrun.Sum)
    starts = np.cumsum([0, *[count // size + (other < count % size) for other in range(size)]])
    assert (part == total[starts[rank] : starts[rank + 1]]).all()
    assert (array == whole[rank]).all()

    assert (distrun.allreduce_(array, f"{name} in place", distrun.Sum) == total).all()

    counts = [choice.choice([0, 5, count // 2, count, count + piece]) for _ in range(size)]
    theirs = [numbers(each, dtype, of) for of, each in enumerate(counts)]
    gathered = distrun.allgather(placed(theirs[rank], shared[rank]), f"{name} all")
    assert (gathered == np.concatenate(theirs)).all()

    root = choice.randrange(size)
    array = placed(whole[rank], shared[rank])
    assert (distrun.broadcast_(array, root, f"{name} from {root}") == whole[root]).all()
