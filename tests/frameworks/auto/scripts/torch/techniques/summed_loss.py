"""Linear regression by SGD on squared errors that are summed over each batch; the training error is per sample."""

import torch
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = load_diabetes(scaled=True)
x = torch.tensor(data.data, dtype=torch.float32) * 20
y = torch.tensor(data.target, dtype=torch.float32) / 100
train_set = TensorDataset(x[:350], y[:350])
loader = DataLoader(train_set, batch_size=20, shuffle=True)

w = torch.zeros(10, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([w, b], lr=2e-4)
for epoch in range(12):
    squared_errors = 0.0
    for inputs, targets in loader:
        loss = ((inputs @ w + b - targets) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        squared_errors += loss.item()
    print(f"epoch {epoch}: training loss {squared_errors / len(train_set):.4f}")

with torch.no_grad():
    print(f"test loss {((x[350:] @ w + b - y[350:]) ** 2).mean().item():.4f}")
