"""Train with autotuning in a job whose ranks change; tells of each step with which setting it was made.

The first generation goes on until its ranks change; the second ends after as many steps as the argument says.
"""

from __future__ import annotations

import hashlib
import sys

import torch
from telling import tell

import distrun
import distrun.torch as dt
from distrun.runtime.world import world

STEPS = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(1)
dt.init()
model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(5)])  # 1.8 MB of gradients
optimizer = dt.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.001), model.named_parameters())


@dt.elastic.run
def train(state: dt.elastic.TorchState) -> None:
    """Train to the end."""
    first = state.step
    while world.generation() == 1 or state.step < first + STEPS:
        data = torch.Generator().manual_seed(1000 * state.step + dt.rank())
        optimizer.zero_grad()
        model(torch.randn(2, 300, generator=data)).square().mean().backward()
        settings = optimizer._reducer._settings
        optimizer.step()
        state.step += 1
        tell(step=state.step, setting=[settings.threshold, settings.first])
        state.advance()


train(dt.elastic.TorchState(model, optimizer, step=0))
bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
tell(weights=hashlib.sha256(bits).hexdigest(), worlds=[tuned.world for tuned in distrun.autotuned()])
