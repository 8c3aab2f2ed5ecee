"""Pretrain and fine-tune in turns: two optimizers that share the encoder's parameters."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=50, shuffle=True)
encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
decoder, classifier = nn.Linear(32, 64), nn.Linear(32, 10)
reconstruct = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
classify = torch.optim.SGD([*encoder.parameters(), *classifier.parameters()], lr=0.1)
for epoch in range(4):
    for images, labels in loader:
        reconstruct.zero_grad()
        nn.functional.mse_loss(decoder(encoder(images)), images).backward()
        reconstruct.step()
        classify.zero_grad()
        nn.functional.cross_entropy(classifier(encoder(images)), labels).backward()
        classify.step()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(classifier(encoder(x[1400:])), y[1400:])
    print(f"epoch {epoch}: test loss {loss.item():.4f}")
torch.save([encoder, classifier], "model.pt")
