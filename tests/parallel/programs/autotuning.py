"""Small operations are fused up to another threshold in the midst of the job, on all ranks from the same one on.

Started with DISTRUN_AUTOTUNE=1. The coordinator's clock is made up: steps are faster with a threshold of 1 MiB.
"""

import random
import sys

import numpy as np

import distrun
from distrun.runtime.world import world

distrun.init()
me, size = distrun.rank(), distrun.size()
own = random.Random(me)
COUNT, STEPS, NBYTES = 40, 75, 64 << 10
MIB = 1 << 20
engine = world.engine()
operations = engine._operations
skew = 0.0
if me == 0:
    began = engine._negotiator._clock()
    engine._negotiator._clock = lambda: began + skew  # what a step really takes, on a busy machine, does not count
seen = []
for step in range(STEPS):
    tensors = [np.full(NBYTES // 4, place + me + step, np.float32) for place in range(COUNT)]
    order = list(range(COUNT))
    own.shuffle(order)  # which of them are ready together differs from step to step
    handles = [distrun.allreduce_async_(tensors[place], f"t{place}", distrun.Sum) for place in order]
    for handle in handles:
        handle.wait()
    for place, tensor in enumerate(tensors):
        assert (tensor == size * (place + step) + size * (size - 1) // 2).all(), (step, place)
    seen.append(operations._threshold)
    skew += 3.0 if seen[-1] == MIB else 5.0
    distrun.barrier(name="step")

every = distrun.allgather_object(seen)
assert all(each == every[0] for each in every), every
if "--off" in sys.argv:
    assert set(seen) == {64 * MIB}
    assert engine._negotiator._amend is None
else:
    assert seen[-1] == MIB, seen
    assert seen[:5] == [64 * MIB] * 5
    assert len(set(seen)) > 1
    told = distrun.autotuned()
    if me == 0:
        (tuned,) = told
        assert tuned.setting == {"fusion_threshold": MIB}, tuned
        assert tuned.default_seconds - tuned.seconds > 1.5, tuned
    else:
        assert told == ()
