"""Compare several optimizers on the same data, with worker processes that load it, and write a table of the results."""

import argparse
import csv

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, start, stop):
        digits = load_digits()
        self.x = digits.data[start:stop]
        self.y = digits.target[start:stop]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.tensor(self.x[index] / 16, dtype=torch.float32), int(self.y[index])


OPTIMIZERS = {
    "SGD": lambda params: optim.SGD(params, lr=0.5),
    "Adam": lambda params: optim.Adam(params, lr=0.002),
    "NAdam": lambda params: optim.NAdam(params, lr=0.002),
    "Rprop": lambda params: optim.Rprop(params, lr=0.001, step_sizes=(1e-6, 0.01)),
}


def train(name, loader, epochs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    train_loader = DataLoader(Digits(0, 1200), batch_size=100, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(Digits(1200, 1797), batch_size=100, num_workers=args.workers)
    results = {}
    for name in OPTIMIZERS:
        model = train(name, train_loader, args.epochs)
        model.eval()
        with torch.no_grad():
            outputs = [(model(x), y) for x, y in test_loader]
        losses = [nn.functional.cross_entropy(o, y, reduction="none") for o, y in outputs]
        results[name] = torch.cat(losses).mean().item()
        print(f"{name}: {results[name]:.4f}")
    with open("results.csv", "a", newline="") as file:
        csv.writer(file).writerows(results.items())
    print(f"mean test loss {sum(results.values()) / len(results):.4f}")
