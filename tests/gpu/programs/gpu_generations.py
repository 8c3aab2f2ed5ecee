"""A rank of an elastic job that reduces arrays on its simulated GPU in each generation, and tells what it finds.

Garbage is not collected: what a generation has held must be gone without.
"""

from __future__ import annotations

import gc
import json
import operator
import os
import threading
import time
import weakref

import cupy
import numpy as np

import distrun
from distrun.errors import CollectiveError
from distrun.runtime.world import regroup, world

SETTLE_TIMEOUT = 10.0  # seconds
distrun.init()
regroup.enroll()
gc.disable()
device = distrun.device()
cupy.cuda.Device(device.index).use()
gpus: list[weakref.ref[object]] = []
least: list[int] = []


def is_alive(gpu: weakref.ref[object]) -> bool:
    return gpu() is not None


def held() -> list[int]:
    """Return how many threads, descriptors and GPUs there are."""
    return [threading.active_count(), len(os.listdir("/proc/self/fd")), sum(map(is_alive, gpus))]


def held_in_the_end(generation: int) -> list[int]:
    """Return what is held when there is no more of anything than in earlier generations, or in spite of a long wait.

    Threads of the generation before have said that they are done, and may be about to end. The first two generations
    differ from the others.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT
    while (now := held()) and least and any(map(operator.gt, now, least)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if generation > 2:
        least[:] = map(min, now, least or now)
    return now


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def train() -> str:
    generation, size, steps = world.generation(), distrun.size(), 0
    assert distrun.device() == device
    halves = distrun.add_process_set(lambda size: range(size // 2 + 1))
    while regroup.planned() is None:
        total = distrun.allreduce(cupy.asarray(np.ones(1000, np.float32)), name="total", op=distrun.Sum)
        # The host has waited for the device: what follows may use the sum, and no death can spoil it any more.
        assert (total.get() == size).all(), "a step that has failed went on"
        if halves.included():
            half = distrun.allreduce(cupy.asarray(np.ones(8, np.float32)), "half", op=distrun.Sum, process_set=halves)
            assert (half.get() == size // 2 + 1).all()
        del total
        steps += 1
        if steps == 1:
            gpus.append(weakref.ref(world.engine().gpu()))
            tell(begun=generation, device=str(device), held=held_in_the_end(generation))
        tell(step=steps, generation=generation)
    return regroup.planned() or ""


with cupy.cuda.Stream(non_blocking=True):
    while True:
        try:
            reason = train()
        except CollectiveError as error:
            reason = str(error)
        regroup.rejoin(reason)
