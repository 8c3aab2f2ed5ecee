"""A training on made-up data with PyTorch: for so many seconds, with a rank 1 that may be late or fail."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, IterableDataset

import distrun
import distrun.torch as dt

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--late", type=float, default=0.0, help="seconds that each batch of rank 1 takes longer")
parser.add_argument("--fails", action="store_true", help="rank 1 fails at the end")
options = parser.parse_args()

dt.init()
torch.set_num_threads(1)


class Samples(IterableDataset):
    def __iter__(self):
        end = time.monotonic() + options.seconds
        step = 0
        while distrun.allreduce(float(time.monotonic() < end), name="goes on", op=distrun.Min) > 0:
            if distrun.rank() == 1:
                time.sleep(options.late)
            yield torch.randn(16, 64), torch.zeros(16, 1)
            step += 1
            if step == 100 and distrun.rank() == 0:
                print(f"step {step} done", flush=True)
        if options.fails and distrun.rank() == 1:
            raise ValueError("no <such> sample")


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = dt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())
for samples, labels in DataLoader(Samples(), batch_size=None):
    optimizer.zero_grad()
    ((model(samples) - labels) ** 2).mean().backward()
    optimizer.step()
    time.sleep(0.005)
