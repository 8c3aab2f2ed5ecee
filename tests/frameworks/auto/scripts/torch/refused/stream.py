"""Train on an endless stream of samples, an IterableDataset that draws them as it goes."""

import argparse
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            x = torch.randn(8, generator=generator)
            yield x, (x.sum() + x[0] * x[1]).unsqueeze(0)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(Stream(seed=1), batch_size=32)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step, (x, y) in enumerate(itertools.islice(loader, args.steps)):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        print(f"step {step + 1}: loss {loss.item():.4f}")
torch.save(model.state_dict(), "stream.pt")
