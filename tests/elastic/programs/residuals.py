"""Train with compressed gradients, and tell of each step what this rank's gradients have lost.

Usage: `residuals.py FORM [commits] [gpu]`; the GPU is a simulated one.
"""

from __future__ import annotations

import sys

import lossy_steps
import torch

import distrun.torch as hvd
from distrun.torch import elastic


def owed() -> list[float]:
    """Return the sizes of the residuals, by parameter."""
    residuals = optimizer._reducer.residuals()
    return [float(residuals[each].lost.abs().sum()) if each in residuals else 0.0 for each in model.parameters()]


def step(_: elastic.TorchState) -> list[torch.Tensor]:
    """Take a step; return the weights."""
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()
    return [each.detach() for each in model.parameters()]


@elastic.run
def train(state: elastic.TorchState) -> None:
    """Take steps until this process is killed."""
    lossy_steps.train(state, step, owed, "commits" in options)


hvd.init()
torch.manual_seed(1)
form, *options = sys.argv[1:]
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
