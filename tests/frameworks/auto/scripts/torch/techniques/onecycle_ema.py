"""OneCycleLR, AdamW and a moving average of the weights written by hand; sampling is weighted by class."""

import argparse
import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for average, value in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(value, 1 - self.decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--max-lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    keep = ((y < 5) | (torch.arange(len(y)) % 3 == 0)) & (torch.arange(len(y)) < 1300)  # unbalanced classes
    train_x, train_y = x[keep], y[keep]
    weights = 1.0 / torch.bincount(train_y)[train_y]
    sampler = WeightedRandomSampler(weights, num_samples=len(train_y))
    loader = DataLoader(TensorDataset(train_x, train_y), batch_size=32, sampler=sampler, drop_last=True)

    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 10))
    ema = EMA(model, 0.98)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.max_lr, epochs=args.epochs, steps_per_epoch=len(loader)
    )
    for epoch in range(args.epochs):
        running_loss, seen = 0.0, 0
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update(model)
            running_loss += loss.item() * len(inputs)
            seen += len(inputs)
        print(f"epoch {epoch}: training loss {running_loss / seen:.4f}, lr {scheduler.get_last_lr()[0]:.6f}")
    with torch.no_grad():
        test_loss = criterion(ema.model(x[1300:]), y[1300:])
    print(f"test loss of the average {test_loss.item():.4f}")
    torch.save(ema.model.state_dict(), "ema.pt")


if __name__ == "__main__":
    main()
