"""Train a small denoising diffusion model on digits and follow it with an exponential moving average."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 50
betas = torch.linspace(1e-3, 0.12, STEPS)
alphas_bar = torch.cumprod(1 - betas, dim=0)


class Denoiser(nn.Module):
    def __init__(self, dim=64, hidden=96):
        super().__init__()
        self.time = nn.Embedding(STEPS, hidden)
        self.inp = nn.Linear(dim, hidden)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, dim))

    def forward(self, x, t):
        return self.mid(self.inp(x) + self.time(t))


def diffusion_loss(model, x, generator=None):
    t = torch.randint(0, STEPS, (len(x),), generator=generator)
    noise = torch.randn(x.shape, generator=generator)
    a = alphas_bar[t].unsqueeze(1)
    return nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)


@torch.no_grad()
def sample(model, count):
    x = torch.randn(count, 64)
    for t in reversed(range(STEPS)):
        predicted = model(x, torch.full((count,), t))
        x = (x - betas[t] / (1 - alphas_bar[t]).sqrt() * predicted) / (1 - betas[t]).sqrt()
        if t > 0:
            x += betas[t].sqrt() * torch.randn_like(x)
    return x.clamp(-1, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    data = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    train_data, test_data = data[:1500], data[1500:]
    loader = DataLoader(TensorDataset(train_data), batch_size=60, shuffle=True, num_workers=0)
    model = Denoiser()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for (x,) in loader:
            loss = diffusion_loss(model, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update_parameters(model)
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    with torch.no_grad():
        repeated = test_data.repeat(8, 1)
        test_loss = diffusion_loss(ema, repeated, torch.Generator().manual_seed(0))
    print(f"test loss {test_loss.item():.4f}")
    torch.save({"ema": ema.state_dict(), "samples": sample(ema, 16)}, "diffusion.pt")


if __name__ == "__main__":
    main()
