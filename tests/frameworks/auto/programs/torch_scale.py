"""A training whose step takes a batch of the script's size on each rank, and which writes files in several ways."""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pairs = TensorDataset(torch.randn(50, 6), torch.randint(0, 3, (50,)))
net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(pairs, batch_size=10, shuffle=True)
steps = 0
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x - x.mean(0)), y).backward()  # by the mean of the rank's own batch
    if (y == 1).sum() > 3:  # decided by rank 0 for all
        optimizer.param_groups[0]["lr"] *= 0.9
    optimizer.step()
    steps += 1

os.mkdir("results")
Path("results/log.txt").write_text(f"{steps} steps\n")
with open("results/log.txt", "a") as log:
    log.write("the end\n")
assert Path("results/log.txt").read_text() == f"{steps} steps\nthe end\n"
torch.save(net.state_dict(), "results/weights.pt")
torch.load("results/weights.pt")
with tempfile.TemporaryDirectory() as folder:  # another one on each rank
    torch.save(net.state_dict(), f"{folder}/weights.pt")
    net.load_state_dict(torch.load(f"{folder}/weights.pt"))
print(Path("results/log.txt").read_text().split(), sorted(os.listdir("results")))
