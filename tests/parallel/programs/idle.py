"""Works, then idles until told, and tells what the idling cost: processor seconds and voluntary context switches."""

import resource
import sys

import numpy as np

import distrun

distrun.init()
for place in range(200):
    distrun.allreduce(np.ones(1000 * place % 50_000), f"tensor.{place % 9}")
pending = distrun.allreduce_async(np.ones(100_000), "last")
pending.wait()
before = resource.getrusage(resource.RUSAGE_SELF)
print("idle", flush=True)
sys.stdin.readline()
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_nvcsw - before.ru_nvcsw, flush=True)
distrun.barrier()  # nobody leaves before all have measured
