"""Train a denoising autoencoder whose decoder uses the encoder's weights; the noise is drawn in the training loop."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader


class TiedAutoencoder(nn.Module):
    def __init__(self, inputs=64, hidden=24):
        super().__init__()
        self.encoder = nn.Linear(inputs, hidden)
        self.decoder_bias = nn.Parameter(torch.zeros(inputs))

    def forward(self, x):
        return F.linear(torch.relu(self.encoder(x)), self.encoder.weight.t(), self.decoder_bias)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--noise", type=float, default=0.05)
args = parser.parse_args()
torch.manual_seed(0)

data = torch.tensor(load_digits().data, dtype=torch.float32) / 16
train_loader = DataLoader(data[:1400], batch_size=40, shuffle=True)
model = TiedAutoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(args.epochs):
    total = 0.0
    for batch in train_loader:
        noisy = batch + args.noise * torch.randn_like(batch)
        loss = F.mse_loss(model(noisy), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch + 1:2d}, mean training loss {total / len(train_loader):.5f}")

with torch.no_grad():
    print(f"test loss {F.mse_loss(model(data[1400:]), data[1400:]).item():.5f}")
torch.save(model, "autoencoder.pt")
