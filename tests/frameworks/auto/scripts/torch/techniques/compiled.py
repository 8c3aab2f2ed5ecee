"""A compiled model, a list of schedulers, weights by WeightedRandomSampler, and a penalty of the weights."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(5)
wine = load_wine()
x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0), dtype=torch.float32)
y = torch.tensor(wine.target)
sampler = WeightedRandomSampler((1.0 / torch.bincount(y))[y], num_samples=160, replacement=True)
loader = DataLoader(TensorDataset(x, y), batch_size=20, sampler=sampler)
net = nn.Sequential(nn.Linear(13, 32), nn.GELU(), nn.Linear(32, 3))
model = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.01)
warmup = LinearLR(optimizer, start_factor=0.1, total_iters=8)
scheduler = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, T_max=40)], milestones=[8])
for epoch in range(6):
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        penalty = sum(weight.abs().sum() for weight in net.parameters())
        loss = nn.functional.cross_entropy(model(inputs), targets) + 1e-4 * penalty
        loss.backward()
        torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.5f} lr {scheduler.get_last_lr()[0]:.5f}")
net.eval()
with torch.no_grad():
    print(f"test loss {nn.functional.cross_entropy(net(x), y).item():.5f}")
