"""A rank that goes from generation to generation by the functions of `regroup`, and tells what it finds in each.

In each generation the ranks make steps until the launcher ends it, or until one has made as many as the first argument
says; the second is the first generation that may end so.
"""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
from telling import tell

import distrun
from distrun.errors import CollectiveError
from distrun.runtime.operations import numbering
from distrun.runtime.process_sets.process_sets import get_process_set_ids_and_ranks
from distrun.runtime.world import regroup, world

STEPS, FIRST_TO_END = int(sys.argv[1]), int([*sys.argv, "1"][2])
things = numbering.Numbering()


def held() -> list[int]:
    """Return how many descriptors, threads, and mappings of our segments this process has."""
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:distrun (deleted)" in line for line in maps)
    return [len(os.listdir("/proc/self/fd")), threading.active_count(), mapped]


def add(*values: float) -> list[float]:
    return distrun.allreduce(np.array(values), name="sum", op=distrun.Sum).tolist()


def train(evens: distrun.ProcessSet, pair: distrun.ProcessSet) -> None:
    size, rank = distrun.size(), distrun.rank()
    inner = distrun.add_process_set([0]) if size > 1 else None
    number = things.next()
    sum_of_evens = None
    if evens.included():
        sum_of_evens = distrun.allreduce(np.array([1.0]), name="evens", op=distrun.Sum, process_set=evens).tolist()
    try:
        pair_size: object = pair.size()
    except distrun.DistrunError as error:
        pair_size = str(error)
    tell(
        begun=world.generation(),
        rank=rank,
        size=size,
        slot=int(os.environ["DISTRUN_SLOT"]),
        device=str(distrun.device()),
        number=number,
        sets=get_process_set_ids_and_ranks(),
        inner=inner and inner.process_set_id,
        evens=sum_of_evens,
        pair=pair_size,
    )
    steps = 0
    while regroup.planned() is None:
        total, most = add(1.0, float(steps >= STEPS and world.generation() >= FIRST_TO_END))
        assert total == size
        steps += 1
        tell(step=steps)
        if steps == 1:
            tell(held=held())
        if most:
            return


def run() -> None:
    distrun.init(process_sets=[lambda size: range(0, size, 2)])
    things.next()
    evens = distrun.runtime.process_sets.process_sets.by_id(1)
    pair = distrun.ProcessSet([0, 2])
    distrun.add_process_set(pair)
    regroup.enroll()
    while True:
        try:
            train(evens, pair)
            reason = regroup.planned()
            if reason is None:
                distrun.barrier()
                return
        except CollectiveError as error:
            reason = str(error)
        tell(over=reason)
        regroup.rejoin(reason)


run()
regroup.finish()
