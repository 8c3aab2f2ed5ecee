"""Train with automatic mixed precision: autocast to bfloat16, and a GradScaler with gradients unscaled for clipping."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(x[:1400], y[:1400]), args.batch_size, True)
    test_loader = DataLoader(TensorDataset(x[1400:], y[1400:]), args.batch_size)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    loss_fn = nn.CrossEntropyLoss().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device)

    for epoch in range(args.epochs):
        for data, target in train_loader:
            with torch.autocast(device_type=device, dtype=torch.bfloat16):
                output = net(data.to(device))
                loss = loss_fn(output, target.to(device))
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.3f}, scale {scaler.get_scale():.0f}")

    total = 0.0
    with torch.no_grad():
        for data, target in test_loader:
            total += loss_fn(net(data.to(device)), target.to(device)).item() * len(data)
    print(f"test loss {total / len(test_loader.dataset):.4f}")
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict(), "scaler": scaler.state_dict()}, "amp.pt")


if __name__ == "__main__":
    main()
