"""The rank in the first argument joins the job when stdin tells it to. All work together once, then idle until told."""

import os
import sys

import numpy as np

import distrun

if os.environ["DISTRUN_RANK"] == sys.argv[1]:
    print("waiting", flush=True)
    sys.stdin.readline()
distrun.init()
for count in (1, 100_000, 1_000_000):
    assert (distrun.allreduce(np.full(count, distrun.rank()), op=distrun.Max) == distrun.size() - 1).all()
print("ready", flush=True)
