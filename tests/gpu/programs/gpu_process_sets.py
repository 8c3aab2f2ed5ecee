"""Process sets on GPUs: overlapping ones, whose operations are all queued before any is waited for, come and go."""

from __future__ import annotations

import os
import random
import signal
import sys

import cupy
import numpy as np

import distrun
from distrun.runtime.world import world

distrun.init()
rank, size = distrun.rank(), distrun.size()
cupy.cuda.Device(distrun.device().index).use()
RANKS = [each for each in ((0, 1), (1, 2, 3), (0, 3), (2,), (0, 2)) if max(each) < size]


def values(other: int, seed: int, dtype: str) -> np.ndarray:
    return np.random.default_rng([seed, other]).integers(0, 9, 100 + 1000 * (seed % 3)).astype(dtype)


def submit(process_set: distrun.ProcessSet, seed: int):
    """Start an operation; return a function that waits for it and checks the result."""
    members, me = process_set.ranks, process_set.rank()
    dtype = ("float32", "int16", "bool")[seed % 3 if seed % 5 == 0 else 0]
    everybody = [values(other, seed, dtype) for other in members]
    array, name = cupy.asarray(everybody[me]), f"{seed}"
    total = sum(each.astype(int) for each in everybody)
    if seed % 5 == 0:
        op = distrun.Average if dtype == "int16" else distrun.Sum  # NCCL cannot average integers
        expected = {"int16": total // len(members), "bool": total > 0}.get(dtype, total)
        handle = distrun.allreduce_async(array, name, op, process_set=process_set)
    elif seed % 5 == 1:
        place = seed % len(members)
        expected = everybody[place]
        handle = distrun.broadcast_async(array, members[place], name, process_set)
    elif seed % 5 == 2:
        parts = [each[: 10 * (place + 1)] for place, each in enumerate(everybody)]
        expected = np.concatenate(parts)
        handle = distrun.allgather_async(cupy.asarray(parts[me]), name, process_set)
    elif seed % 5 == 3:
        expected = np.array_split(total, len(members))[me]
        handle = distrun.reducescatter_async(array, name, distrun.Sum, process_set=process_set)
    else:
        splits = [7] * len(members)
        expected = np.concatenate([each[7 * me : 7 * me + 7] for each in everybody])
        handle = distrun.alltoall_async(array[: 7 * len(members)].copy(), splits, name, process_set)

    def check() -> None:
        result = handle.wait()
        result = result[0] if isinstance(result, tuple) else result
        assert (result.get() == expected).all(), (members, seed)

    return check


def use(sets: list[distrun.ProcessSet], turn: int) -> None:
    """Queue operations of all our sets, in an order of our own, and wait for them in another."""
    mine = [(process_set, 40 * turn + seed) for process_set in sets if process_set.included() for seed in range(15)]
    order = random.Random(rank)
    order.shuffle(mine)
    waits = [submit(*each) for each in mine]
    order.shuffle(waits)
    for wait in waits:
        wait()


def connected() -> set[int]:
    """The process sets of which this rank has a communicator."""
    return {process_set for process_set, _ in world.engine().gpu()._communicators._communicators}


if sys.argv[1:] == ["killed"]:
    array = cupy.asarray(np.ones(3, np.float32))
    pair = distrun.add_process_set([1, 2])
    distrun.allreduce(array, "of all")
    try:
        if pair.included():
            distrun.allreduce(array, "first", process_set=pair)
            stream = cupy.cuda.get_current_stream()
            distrun.allreduce(array, "second", process_set=pair)
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            stream.synchronize()
            for _ in range(100_000):
                distrun.allreduce(array, "later", process_set=pair)
                stream.synchronize()
        else:
            distrun.allreduce(array, "of all")
    except distrun.CollectiveError as error:
        text = str(error)
    else:
        raise SystemExit(f"rank {rank} has seen no error")
    assert "rank 2 " in text, text
    print(f"rank {rank} was told", flush=True)
    sys.exit()

is_staged = os.environ.get("DISTRUN_GPU_BACKEND") == "staged"
sets = [distrun.add_process_set(each) for each in RANKS]
for turn in range(2):
    use(sets, turn)  # before any operation of the world
    use([*sets, distrun.global_process_set], turn + 10)
    own = {0, *[each.process_set_id for each in sets if each.included()]}
    assert connected() == (set() if is_staged else own), connected()
    for each in sets:
        assert distrun.remove_process_set(each)
    assert connected() <= {0}, connected()
    sets = [distrun.add_process_set(each) for each in reversed(RANKS)]
distrun.barrier()
print(f"rank {rank}: fine", flush=True)
