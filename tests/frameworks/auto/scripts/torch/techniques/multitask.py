"""Two heads on one trunk: a class by a mean loss, and a size by a loss that is summed over the batch; plain SGD."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.digit = nn.Linear(48, 10)
        self.ink = nn.Linear(48, 1)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.digit(hidden), self.ink(hidden).squeeze(1)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
torch.manual_seed(0)

digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
ink = x.sum(1) / 10
train_loader = DataLoader(TensorDataset(x[:1400], y[:1400], ink[:1400]), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(x[1400:], y[1400:], ink[1400:]), batch_size=100)
model = MultiTask()
class_loss, size_loss = nn.CrossEntropyLoss(), nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    model.train()
    for images, labels, sizes in train_loader:
        logits, predicted = model(images)
        loss = class_loss(logits, labels) + 0.003 * size_loss(predicted, sizes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    totals = [0.0, 0.0]
    with torch.no_grad():
        for images, labels, sizes in test_loader:
            logits, predicted = model(images)
            totals[0] += class_loss(logits, labels).item() * len(labels)
            totals[1] += size_loss(predicted, sizes).item()
    by_class, by_size = (total / len(test_loader.dataset) for total in totals)
    print(f"epoch {epoch}: classes {by_class:.4f}, sizes {by_size:.5f}, test loss {by_class + by_size:.4f}")
torch.save(model.state_dict(), "multitask.pt")
