"""A rank that shuts down and joins three times in its first generation, and then goes on to the next."""

from __future__ import annotations

import numpy as np

import distrun
from distrun.errors import CollectiveError
from distrun.runtime.world import regroup, world

for life in range(3):
    distrun.init()
    assert distrun.allgather_object(life) == [life] * 3
    if life < 2:
        distrun.shutdown()
regroup.enroll()
try:
    while True:
        distrun.allreduce(np.ones(1), name="step")
except CollectiveError as error:
    regroup.rejoin(str(error))
assert (world.generation(), distrun.size()) == (2, 2)
distrun.barrier()
