"""Train with compressed gradients, and tell of each step what this rank's gradients have lost.

Usage: `losses.py FORM [commits] [gpu]`; the GPU is a simulated one.
"""

from __future__ import annotations

import json
import sys
import time
import zlib

import torch

import distrun.torch as hvd
from distrun.runtime import world
from distrun.torch import elastic


def tell(**facts: object) -> None:
    """Print a line that the test reads."""
    print(json.dumps({"generation": world.generation(), **facts}), flush=True)


def owed() -> list[float]:
    """Return the sizes of what is still to be made up for, by parameter."""
    losses = optimizer._reducer.losses()
    return [float(losses[each].lost.abs().sum()) if each in losses else 0.0 for each in model.parameters()]


@elastic.run
def train(state: elastic.TorchState) -> None:
    """Take steps until this process is killed."""
    tell(begun=state.step, owed=owed())
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().sum().backward()
        optimizer.step()
        bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        assert len(set(hvd.allgather_object(zlib.crc32(bits), name="bits"))) == 1
        state.step += 1
        if COMMITS and state.step % 4 == 0:
            state.commit()
        elif not COMMITS:
            state.advance()
        tell(step=state.step, owed=owed())
        time.sleep(0.01)  # as if it computed


hvd.init()
torch.manual_seed(1)
form, *options = sys.argv[1:]
COMMITS = "commits" in options
if "gpu" in options:
    import playing

    playing.play()
compression = hvd.Compression.powersgd(2) if form == "powersgd" else hvd.Compression.int4
model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 64))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 1e-4), model.named_parameters(), compression=compression
)
torch.manual_seed(2 + hvd.rank())
train(elastic.TorchState(model, optimizer, step=0))
