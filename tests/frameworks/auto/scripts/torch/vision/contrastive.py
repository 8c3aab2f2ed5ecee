"""Contrastive pretraining (SimCLR): all other samples of the batch are negatives, so the loss needs the whole batch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def nt_xent(z1, z2, temperature=0.5):
    """Return the normalised, temperature-scaled cross-entropy of two views, (batch, dim) each."""
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    similarity = z @ z.t() / temperature
    similarity.fill_diagonal_(float("-inf"))
    n = len(z1)
    positives = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return F.cross_entropy(similarity, positives)


def augment(x):
    return x + 0.1 * torch.randn_like(x)


torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
loader = DataLoader(x[:1400], batch_size=70, shuffle=True, drop_last=True)
encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for epoch in range(5):
    total = 0.0
    for batch in loader:
        loss = nt_xent(encoder(augment(batch)), encoder(augment(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: training loss {total / len(loader):.4f}")
with torch.no_grad():
    torch.manual_seed(1)
    test_loss = nt_xent(encoder(augment(x[1400:])), encoder(augment(x[1400:])))
print(f"test loss {test_loss.item():.4f}")
