"""Train with DiLoCo until a rank is gone: the one in the first argument stops itself in the middle of an exchange."""

import os
import signal
import sys

import torch

import distrun.torch as dt
from distrun.errors import JobAbortedError

torch.set_num_threads(1)
model = torch.nn.Linear(500, 500)
inner = torch.optim.SGD(model.parameters(), 1e-3)
dt.init()
dt.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = dt.DiLoCo(inner, model.named_parameters(), every=8, fragments=2)
try:
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(4, 500)).square().mean().backward()
        optimizer.step()
        if step == 11:  # the third exchange has begun with this step, and is used after four more
            assert optimizer._outer.under_way is not None
            print("ready", flush=True)
            if dt.rank() == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGSTOP)
except JobAbortedError as error:
    print(f"JobAbortedError: {error}", flush=True)
    try:
        optimizer.merge()
    except JobAbortedError as error:
        print(f"merge: JobAbortedError: {error}", flush=True)
