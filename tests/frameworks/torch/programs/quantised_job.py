"""A job whose wire dtype is a quantised one: large floats lose a little, all else nothing."""

import os

import numpy as np
import torch

import distrun.torch as hvd

hvd.init()
ROUNDING = {"int8": 1 / 254, "int4": 5 / 18}[os.environ["DISTRUN_WIRE_DTYPE"]]  # of the largest of 256
values = np.linspace(-1, 1, 50_000, dtype=np.float32)
for result in (
    hvd.allreduce(torch.from_numpy(values), name="torch").numpy(),
    np.concatenate(hvd.allgather_object(hvd.reducescatter(torch.from_numpy(values), name="part").numpy())),
):
    error = np.abs(result - values).max()
    assert 0 < error <= 2.02 * ROUNDING, error
small = torch.linspace(-1, 1, 4000)
assert torch.equal(hvd.allreduce(small, name="small"), small)
assert torch.equal(hvd.broadcast(torch.from_numpy(values), 0, name="weights"), torch.from_numpy(values))
model = torch.nn.Linear(100, 100)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 100)).sum().backward()
    optimizer.synchronize()
    assert torch.equal(model.bias.grad, torch.full((100,), 2.0))
    assert float((model.weight.grad - 2).abs().max()) <= 1e-5
