"""Forecast a seasonal series with an LSTM; ReduceLROnPlateau and early stopping follow the validation loss."""

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_windows(length, window=24, seed=0):
    """Return windows of a noisy sum of sines, (samples, window, 1), and the value after each, (samples, 1)."""
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    series = np.sin(t / 5) + 0.5 * np.sin(t / 17) + 0.1 * rng.standard_normal(length)
    x = np.lib.stride_tricks.sliding_window_view(series, window)[:-1]
    y = series[window:]
    return torch.tensor(x[..., None], dtype=torch.float32), torch.tensor(y[:, None], dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return self.head(h[-1])


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad_epochs, self.state = patience, float("inf"), 0, None

    def step(self, value, model):
        if value < self.best - 1e-4:
            self.best, self.bad_epochs, self.state = value, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--patience", type=int, default=2)
    args = parser.parse_args()
    np.random.seed(0)
    torch.manual_seed(0)

    x, y = make_windows(1100)
    train_loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[800:], y[800:]), batch_size=64)
    model = Forecaster()
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.02)
    stopping = EarlyStopping(args.patience)
    for epoch in range(args.epochs):
        model.train()
        train_loss = 0.0
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            train_loss += loss.detach()
        model.eval()
        with torch.no_grad():
            val_loss = np.mean([criterion(model(inputs), targets).item() for inputs, targets in val_loader])
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch}: train {train_loss.item() / len(train_loader):.5f}, val {val_loss:.5f}, lr {lr:.5f}")
        if stopping.step(val_loss, model):
            print(f"early stopping after epoch {epoch}")
            break
    model.load_state_dict(stopping.state)
    torch.save(stopping.state, "forecaster.pt")
    print(f"best validation loss {stopping.best:.5f}")


if __name__ == "__main__":
    main()
