"""Train with DiLoCo on hosts that come and go; tells of each step, and where each generation begins, in lines of JSON.

One parameter is moved by each host by another amount in each step, so that it tells whose progress is in it.
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
from telling import is_over, is_there, tell

import distrun.torch as dt

OVERLAPS, STEPS, HOLD = sys.argv[1] == "overlap", int(sys.argv[2]), int(sys.argv[3])
"""After HOLD steps the ranks wait for others to come, until a file `go` is there."""
torch.set_num_threads(1)


def digest(*tensors: torch.Tensor) -> str:
    """Return what is equal for equal bits."""
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


torch.manual_seed(1)
model = torch.nn.Linear(70, 70)
moved = torch.nn.Parameter(torch.zeros(()))
inner = torch.optim.SGD([*model.parameters(), moved], 1.0)  # imports much, for which others would wait after init
wrap = dt.DiLoCo
dt.init()
optimizer = wrap(inner, every=7, outer_lr=1.0, momentum=0.5, wire="int8", fragments=2, overlap=OVERLAPS)
hosts = optimizer.process_set


def outer() -> dict[str, list]:
    return optimizer.state_dict()["outer_steps"]


def leave() -> None:
    """This survivor has left a generation: tell where it stands."""
    tell(left=float(moved), versions=outer()["versions"], by=1 + hosts.ranks[0])


@dt.elastic.run
def train(state: dt.elastic.TorchState) -> None:
    anchors = outer()["anchors"] + outer()["velocities"]
    tell(entered=float(moved), weights=digest(*model.parameters(), moved, *anchors), at=outer()["step"])
    while not is_over(state.step, STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(4, 70, generator=torch.Generator().manual_seed(state.step * 97 + dt.rank()))
        loss = 0.01 * (model(inputs) - inputs).square().mean() - moved * (1 + hosts.ranks[0])
        loss.backward()
        optimizer.step()
        state.step += 1
        tell(step=state.step, size=dt.size())
        state.advance()
        while state.step == HOLD and not is_there("go"):
            time.sleep(0.01)
            state.check_host_updates()
        time.sleep(0.002)
    optimizer.merge()


state = dt.elastic.TorchState(model, optimizer, step=0)
state.moved = moved
state.register_reset_callbacks([leave])
train(state)
tell(done=digest(*model.parameters(), moved), at=outer()["step"])
