"""Standardise by statistics taken from the loader, then report accuracy and losses measured while training."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def statistics(loader):
    """Return the mean and the standard deviation of each feature, from one pass over all batches."""
    total, squares, count = 0.0, 0.0, 0
    for x, _ in loader:
        total = total + x.sum(0)
        squares = squares + (x**2).sum(0)
        count += len(x)
    mean = total / count
    return mean, (squares / count - mean**2).clamp_min(1e-6).sqrt()


torch.manual_seed(0)
data = load_breast_cancer()
x = torch.tensor(data.data, dtype=torch.float64)
y = torch.tensor(data.target)
train_set = TensorDataset(x[:430], y[:430])
loader = DataLoader(train_set, batch_size=32, shuffle=True)
mean, std = statistics(loader)
print(f"mean of the first feature {mean[0].item():.6f}")

model = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 2)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for epoch in range(6):
    correct, running_loss, losses = 0, 0.0, []
    for inputs, targets in loader:
        outputs = model((inputs - mean) / std)
        loss = nn.functional.cross_entropy(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        running_loss += loss.item() * inputs.size(0)
        correct += (outputs.argmax(1) == targets).sum().item()
    history += losses
    print(
        f"epoch {epoch}: training loss {running_loss / len(train_set):.4f}, "
        f"mean of batches {sum(losses) / len(losses):.4f}, training accuracy {correct / len(train_set):.4f}"
    )
torch.save(history, "history.pt")

model.eval()
with torch.no_grad():
    outputs = model((x[430:] - mean) / std)
print(f"test loss {nn.functional.cross_entropy(outputs, y[430:]).item():.4f}")
