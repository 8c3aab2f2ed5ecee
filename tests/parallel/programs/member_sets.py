"""Process sets that their own ranks form, while the others are about other things."""

import os
import sys
import threading
import time
from itertools import combinations

import numpy as np
from refusals import refuse

import distrun
from distrun.runtime.process_sets import member_sets
from distrun.runtime.process_sets.process_sets import get_process_set_ids_and_ranks

distrun.init()
rank, size = distrun.rank(), distrun.size()
DEADLINE = 300.0


def values(which=rank):
    return np.arange(5, dtype=np.float32) + which


def use(process_set, label):
    """Run some collectives of a set of which we are one."""
    ranks = process_set.ranks
    total = sum(values(other) for other in ranks)
    assert (distrun.allreduce(values(), f"sum {label}", distrun.Sum, process_set=process_set) == total).all()
    gathered = distrun.allgather(values(), f"all {label}", process_set)
    assert (gathered == np.concatenate([values(other) for other in ranks])).all()
    assert (distrun.broadcast(values(), ranks[-1], f"last {label}", process_set) == values(ranks[-1])).all()
    distrun.barrier(process_set, f"barrier {label}")


def all_subsets():
    return [ranks for count in range(1, size + 1) for ranks in combinations(range(size), count)]


# Each in turn; the others go on, and are somewhere else by then.
for ranks in all_subsets():
    if rank in ranks:
        made = member_sets.form(reversed(ranks), f"{ranks}")
        assert made.ranks == list(ranks)
        assert made.rank() == ranks.index(rank)
        assert made.size() == len(ranks)
        assert made.process_set_id not in get_process_set_ids_and_ranks()
        use(made, ranks)
        member_sets.dissolve(made)
        member_sets.dissolve(made)
        refuse(distrun.UsageError, "not registered", lambda made=made: distrun.barrier(made))
distrun.barrier()

# The same ranks twice, and overlapping ones, side by side, next to a set that all ranks have added.
pairs = [(a, b) for a, b in combinations(range(size), 2)]
everybodys = distrun.add_process_set([0, size - 1]) if size > 2 else None
twins = [
    (made, ranks, copy)
    for ranks in pairs
    for copy in range(2)
    if rank in ranks
    for made in [member_sets.form(ranks, f"{ranks} {copy}")]
]
handles = [
    distrun.allreduce_async(values(), f"side {copy}", distrun.Sum, process_set=made)
    for made, _, copy in reversed(twins)
]
for (_, ranks, _), handle in zip(reversed(twins), handles, strict=True):
    assert (handle.wait() == sum(values(other) for other in ranks)).all()
if everybodys is not None and rank in (0, size - 1):
    use(everybodys, "everybody's")
for made, _, _ in twins:
    member_sets.dissolve(made)
distrun.barrier()

# While the first rank makes no call at all, and the last thread of another forms one of its own.
told = os.path.join(sys.argv[1], "told")
if size > 1:
    others = range(1, size)
    if rank == 0:
        until = time.monotonic() + DEADLINE
        while not os.path.exists(told) and time.monotonic() < until:
            sum(range(1000))
        assert os.path.exists(told)
    else:
        made = member_sets.form(others, "without the coordinator")
        use(made, "without the coordinator")
        if rank == 1:
            with open(told, "w"):
                pass
    distrun.barrier()

# In two threads, which meet in any order.
if size > 1:
    made = {}

    def form(label):
        made[label] = member_sets.form(range(size), f"thread {label}")

    threads = [threading.Thread(target=form, args=(label,)) for label in sorted("ab", reverse=rank % 2 == 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for label in "ab":
        use(made[label], f"thread {label}")

# Thousands, one after the other: what they hold is freed.
if size == 3:
    for count in range(1100):
        if rank != 1:
            made = member_sets.form((0, 2), f"brief {count}")
            member_sets.dissolve(made)
distrun.barrier()

refuse(distrun.UsageError, "ranks of the job, this one among them", lambda: member_sets.form([size + 1], "nobody"))
if size > 1:
    refuse(distrun.UsageError, "this one among them", lambda: member_sets.form([(rank + 1) % size], "without me"))
if size > 2 and rank < 2:  # whichever comes first
    ranks = (0, 1, 2) if rank == 0 else (0, 1)
    refuse(distrun.MismatchError, "the ranks disagree about ranks", lambda: member_sets.form(ranks, "unequal"))
distrun.barrier()

held = member_sets.form(range(size), "held")
distrun.shutdown()
assert held.process_set_id is None
member_sets.dissolve(held)
distrun.init()
distrun.barrier()
print("done")
