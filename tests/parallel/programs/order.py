"""Operations submitted in a different order on every rank, from several threads, by name; and unnamed ones in order."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import distrun

distrun.init()
me, size = distrun.rank(), distrun.size()
own = random.Random(me)  # different on every rank
common = random.Random(4711)  # the same
ranks_sum = size * (size - 1) // 2


def submit(kind: str, name: str | None, seed: int):
    """Start an operation; a function that waits for it and checks it."""
    if kind == "allreduce":
        dtype = [np.float32, np.int32, np.float64][seed % 3]
        count = [1, 1000, 100_000][seed // 3 % 3]
        base = (1 << 24) + 1 + seed if seed % 3 else seed  # more than float32 could hold, where it is another type
        handle = distrun.allreduce_async(np.full(count, base + me, dtype), name, distrun.Sum)
        return lambda: check(handle.wait(), np.full(count, size * base + ranks_sum, dtype))
    if kind == "in place":
        handle = distrun.allreduce_async_(np.full(50 + seed, seed, np.float16), name, distrun.Average)
        return lambda: check(handle.wait(), np.full(50 + seed, seed, np.float16))
    if kind == "allgather":
        handle = distrun.allgather_async(np.full((me + 1, 2), seed, np.int64), name)
        return lambda: check(handle.wait(), np.full((ranks_sum + size, 2), seed, np.int64))
    if kind == "broadcast":
        handle = distrun.broadcast_async(np.array([seed, me]), seed % size, name)
        return lambda: check(handle.wait(), np.array([seed, seed % size]))
    handle = distrun.alltoall_async(np.full(size, me + seed), None, name)
    return lambda: check(handle.wait(), np.arange(size) + seed)


def check(actual, expected) -> None:
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert np.array_equal(actual, expected), (actual, expected)


KINDS = ("allreduce", "in place", "allgather", "broadcast", "alltoall")


def rounds(repeats: int, label: str, threads: ThreadPoolExecutor | None) -> None:
    """Submit the same named operations again and again, each time shuffled differently on every rank."""
    work = [(common.choice(KINDS), f"{label}.{place}", place) for place in range(60)]
    for _ in range(repeats):
        mine = work.copy()
        own.shuffle(mine)
        if threads is None:
            waits = [submit(*item) for item in mine]
            own.shuffle(waits)
            for wait in waits:
                wait()
        else:
            list(threads.map(lambda item: submit(*item)(), mine))


rounds(15, "one", None)
with ThreadPoolExecutor(60) as threads:  # each waits for what it submitted, so none may wait for a thread to be free
    rounds(10, "several", threads)

# Unnamed operations are matched by their order, whatever is fused with what, however the ranks' speeds differ.
for turn in range(40):
    work = [(common.choice(KINDS), None, common.randrange(9)) for _ in range(common.randrange(1, 30))]
    distrun.barrier(name="turn")
    if me == turn % size:  # the others have submitted theirs by the time this rank hears of it
        distrun.broadcast(np.zeros(1), 0, f"go.{turn}")
    waits = [submit(*item) for item in work]
    if me != turn % size:
        distrun.broadcast(np.zeros(1), 0, f"go.{turn}")
    for wait in waits:
        wait()

# Unnamed ones from one thread and named ones from others at the same time.
failures = []


def named_ones(label: str) -> None:
    try:
        for turn in range(100):
            submit("allreduce", f"{label}.{turn % 3}", turn % 9)()
    except BaseException as error:
        failures.append(error)


others = [threading.Thread(target=named_ones, args=(f"thread.{place}",)) for place in range(4)]
for thread in others:
    thread.start()
for _ in range(100):
    submit(common.choice(KINDS), None, common.randrange(9))()
for thread in others:
    thread.join()
assert not failures, failures

# A name may change what it stands for, and change it back.
for _ in range(3):
    for shape, dtype in [((3,), np.float32), ((4,), np.float32), ((3,), np.int64), ((3, 1), np.float32)]:
        check(distrun.allreduce(np.ones(shape, dtype), "same", distrun.Sum), np.full(shape, size, dtype))
    check(distrun.broadcast(np.full(3, me), 1, "same"), np.full(3, 1))

# More than the cache numbers: the rest is sent whole each time.
for _ in range(2):
    for place in range(30):
        check(distrun.allreduce(np.full(2, place), f"many.{place}", distrun.Max), np.full(2, place))
