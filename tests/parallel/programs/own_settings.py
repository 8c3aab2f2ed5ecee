"""Variables may not reach every host: rank 1 has another stall timeout; where ranks must agree, rank 0's counts."""

import os

if os.environ["DISTRUN_RANK"] == "1":
    os.environ["DISTRUN_STALL_TIMEOUT"] = "5"

import numpy as np

import distrun

distrun.init()
for _ in range(20):
    assert distrun.allreduce(np.ones(4), "again", distrun.Sum).tolist() == [distrun.size()] * 4
