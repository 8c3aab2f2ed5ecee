"""A training on made-up data: for so many seconds, with a rank 1 that may be late or fail."""

import argparse
import itertools
import time

import numpy as np

import distrun
import distrun.data

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--late", type=float, default=0.0, help="seconds that each batch of rank 1 takes longer")
parser.add_argument("--late-from", type=int, default=0, metavar="STEP", help="when that begins")
parser.add_argument("--fails", action="store_true", help="rank 1 fails at the end")
options = parser.parse_args()

distrun.init()
end = time.monotonic() + options.seconds


def batches():
    for step in itertools.count():
        if step == options.late_from and distrun.rank() == 1:
            print("slow from now on", flush=True)
        time.sleep(options.late * (step >= options.late_from and distrun.rank() == 1))
        yield np.ones(1000, np.float32)


for step, batch in zip(itertools.count(1), distrun.data.watch(batches())):
    time.sleep(0.01)
    distrun.allreduce_(batch, name="gradient")
    if step == 100 and distrun.rank() == 0:
        print(f"step {step} done", flush=True)
    if not distrun.allreduce(float(time.monotonic() < end), name="goes on", op=distrun.Min):
        break
if options.fails and distrun.rank() == 1:
    raise ValueError("no <such> sample")
