"""Accumulate gradients over several batches before each step, with the norm clipped and a progress line."""

import argparse
import sys

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--accumulation-steps", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(0)

data = load_breast_cancer()
x = torch.tensor(StandardScaler().fit_transform(data.data), dtype=torch.float32)
y = torch.tensor(data.target, dtype=torch.float32).unsqueeze(1)
loader = DataLoader(TensorDataset(x[:469], y[:469]), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(30, 16), nn.GELU(), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adamax(model.parameters(), lr=4e-3)

for epoch in range(args.epochs):
    optimizer.zero_grad()
    running = 0.0
    for i, (inputs, targets) in enumerate(loader):
        loss = criterion(model(inputs), targets)
        running += loss.item()
        (loss / args.accumulation_steps).backward()
        if (i + 1) % args.accumulation_steps == 0 or i + 1 == len(loader):
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            sys.stdout.write(f"\repoch {epoch + 1}: {i + 1}/{len(loader)}, gradient norm {norm:.3f}")
            sys.stdout.flush()
    sys.stdout.write(f"\repoch {epoch + 1}: training loss {running / len(loader):.4f}              \n")

model.eval()
with torch.no_grad():
    outputs = model(x[469:])
print(f"test loss: {criterion(outputs, y[469:]).item():.4f}")
print(f"test accuracy: {((outputs > 0) == (y[469:] > 0.5)).float().mean().item():.4f}")
torch.save(model.state_dict(), "model.pt")
