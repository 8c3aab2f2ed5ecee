"""Programs of ranks that run until something happens to them or their hosts."""

from __future__ import annotations

SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN);"
# Leaves a process in a session of its own that holds the output pipes; its death would take a signal of its own.
DAEMON = """
import os, time
here, there = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('daemon', flush=True)
        os.write(there, b'!')
        time.sleep(1000)
    os._exit(0)
os.wait()
os.read(here, 1)
"""
REDUCING = """
import numpy as np, distrun
distrun.init()
tensor = distrun.empty(4_000_000, np.float32)
while True:
    tensor[:] = 1
    distrun.allreduce_(tensor, "big", distrun.Sum)
    print("going", flush=True)
"""
# Some steps of any number of ranks, a little apart, whose sums are compared.
COUNTING = """
import itertools, sys, time, numpy as np, distrun
distrun.init()
rank, size = distrun.rank(), distrun.size()
tensor = distrun.empty({elements}, np.float32)
for number in itertools.count():
    tensor[:] = rank + number
    distrun.allreduce_(tensor, "big", distrun.Sum)
    assert (tensor == size * number + size * (size - 1) / 2).all()
    print("step", number, flush=True)
    time.sleep({pause})
"""
WAITING = """
import sys, time, numpy as np, distrun
distrun.init()
distrun.barrier()
print("going", flush=True)
if distrun.rank() == 1: time.sleep(1000)
distrun.allreduce(np.ones(3), "waits")
"""
# Workers of parameter servers, each of which pushes its rank + 1 for every element.
SERVED = """
import numpy as np
import distrun
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import Session

distrun.init()
rule = Rule("torch.SGD", dict(momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, delay=0))
session = Session(Layout((Parameter("a", (300000,), 0),), (rule,), distrun.size(), {staleness} == 0))
if distrun.rank() == 0:
    session.start({{0: np.zeros(300000, np.float32)}})
session.pull(0)

def push():
    session.await_values()
    session.gradient_of(0)[:] = distrun.rank() + 1
    session.push([1.0], [True], {{}}, {staleness}, 0)
"""
# They push 20 times, and each as often as its entry of `more` says once a file is there. A copy of the servers that was
# made at the beginning has lost the first 20 of them.
SERVED_UNTIL = (
    SERVED
    + """
import os, time
for _ in range(20):
    push()
session.await_values()
distrun.barrier()
print("training", flush=True)
while not os.path.exists({file!r}):
    time.sleep(0.05)
for _ in range({more}[distrun.rank()]):
    push()
session.await_values()
distrun.barrier()
session.pull(float("inf"))
assert (session.values == {expected}).all(), session.values
"""
)
