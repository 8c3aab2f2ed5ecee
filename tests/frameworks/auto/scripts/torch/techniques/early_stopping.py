"""A learning rate finder first; then training with random_split, validation inside the loop, a moving average of the
weights, accumulated gradients and early stopping."""

import copy
import sys

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(3)
data = load_diabetes(scaled=True)
x = torch.tensor(data.data, dtype=torch.float32) * 20
y = torch.tensor(data.target, dtype=torch.float32).unsqueeze(1) / 100
train_set, val_set, test_set = random_split(TensorDataset(x, y), [300, 70, 72])
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
val_loader, test_loader = DataLoader(val_set, batch_size=70), DataLoader(test_set, batch_size=72)
model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1))
criterion = nn.MSELoss()


def find_lr(model, loader, low=1e-4, high=10.0, steps=15):
    """Raise the learning rate with each batch, until the loss explodes; take a tenth of that of the lowest loss."""
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=low)
    best, best_lr, average = float("inf"), low, 0.0
    for step, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        average = 0.7 * average + 0.3 * loss.item()
        smoothed = average / (1 - 0.7 ** (step + 1))
        if step >= steps or smoothed > 4 * best:
            break
        if smoothed < best:
            best, best_lr = smoothed, optimizer.param_groups[0]["lr"]
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= (high / low) ** (1 / steps)
    model.load_state_dict(before)
    return best_lr / 10


def validate(model, loader):
    was_training = model.training
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
    model.train(was_training)
    return total / len(loader)


lr = find_lr(model, train_loader)
print(f"learning rate {lr:.6f}")
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
best, patience, steps = float("inf"), 0, 0
accumulate = 2
for epoch in range(20):
    model.train()
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(train_loader):
        loss = criterion(model(inputs), targets) / accumulate
        loss.backward()
        if (i + 1) % accumulate and i + 1 < len(train_loader):
            continue
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
        steps += 1
        if steps % 5 == 0:
            value = validate(ema, val_loader)
            if value < best:
                best, patience = value, 0
                torch.save({"model": ema.module.state_dict(), "steps": steps}, "best.pt")
            else:
                patience += 1
    print(f"epoch {epoch}: training loss {accumulate * loss.item():.4f}, validation loss {best:.4f}")
    if patience > 3:
        print("early stopping after", steps, "steps", file=sys.stdout)
        break
checkpoint = torch.load("best.pt", weights_only=True)
model.load_state_dict(checkpoint["model"])
print(f"best at step {checkpoint['steps']}, test loss {validate(model, test_loader):.4f}")
