"""Train for some epochs, save everything, and go on from the checkpoint if there is one."""

import argparse
import os

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6, help="epochs of this run")
parser.add_argument("--checkpoint", default="checkpoint.pt")
args = parser.parse_args()
torch.manual_seed(0)

data = load_diabetes(scaled=True)
x = torch.tensor(data.data, dtype=torch.float32) * 20
y = torch.tensor(data.target, dtype=torch.float32).unsqueeze(1) / 100
train_loader = DataLoader(TensorDataset(x[:360], y[:360]), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.HuberLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)

start_epoch = 0
if os.path.isfile(args.checkpoint):
    checkpoint = torch.load(args.checkpoint, weights_only=True)
    start_epoch = checkpoint["epoch"]
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
    torch.set_rng_state(checkpoint["rng_state"])
    print(f"=> loaded checkpoint '{args.checkpoint}' (epoch {start_epoch})")

for epoch in range(start_epoch, start_epoch + args.epochs):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    scheduler.step()
    torch.save(
        {
            "epoch": epoch + 1,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler_state_dict": scheduler.state_dict(),
            "rng_state": torch.get_rng_state(),
        },
        args.checkpoint,
    )
    model.eval()
    with torch.no_grad():
        test_loss = criterion(model(x[360:]), y[360:]).item()
    print(f"epoch {epoch}: lr {scheduler.get_last_lr()[0]:.6f}, test loss {test_loss:.5f}")
