"""A job in which the last rank gets its data more slowly than the others."""

import time

import torch

import distrun.torch as dt
from distrun.data import watch

dt.init()
torch.set_num_threads(1)
torch.manual_seed(dt.rank())
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters()))
dt.broadcast_parameters(model.state_dict(), root_rank=0)


def batches():
    for _ in range(600):
        time.sleep(0.022 if dt.rank() == dt.size() - 1 else 0.002)
        samples = torch.randn(64, 256)
        yield samples, samples.sum(1, keepdim=True)


for step, (samples, sums) in enumerate(watch(batches())):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(samples), sums)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.2f}", flush=True)
