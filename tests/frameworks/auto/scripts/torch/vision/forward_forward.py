"""Train layer after layer by the forward-forward algorithm, each with an optimizer of its own."""

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset


def overlay_y_on_x(x, y, classes=10):
    x_ = x.clone()
    x_[:, :classes] *= 0.0
    x_[range(x.shape[0]), y] = x.max()
    return x_


def wrong_labels(y):
    return (y + 3) % 10


class Layer(nn.Linear):
    def __init__(self, in_features, out_features, lr=0.02):
        super().__init__(in_features, out_features)
        self.relu = nn.ReLU()
        self.opt = Adam(self.parameters(), lr=lr)
        self.threshold = 2.0

    def forward(self, x):
        x_direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(x_direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_on(self, x_pos, x_neg):
        g_pos = self.forward(x_pos).pow(2).mean(1)
        g_neg = self.forward(x_neg).pow(2).mean(1)
        loss = torch.log(1 + torch.exp(torch.cat([-g_pos + self.threshold, g_neg - self.threshold]))).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return self.forward(x_pos).detach(), self.forward(x_neg).detach(), loss.item()


class Net(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList([Layer(a, b) for a, b in itertools.pairwise(dims)])

    def goodness(self, x):
        total = []
        for layer in self.layers:
            x = layer(x)
            total.append(x.pow(2).mean(1))
        return sum(total)

    def predict(self, x):
        return torch.stack([self.goodness(overlay_y_on_x(x, label)) for label in range(10)], 1).argmax(1)


torch.manual_seed(1234)
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=100, shuffle=True)
net = Net([64, 100, 100])
for epoch in range(6):
    epoch_loss = 0.0
    for inputs, labels in train_loader:
        h_pos, h_neg = overlay_y_on_x(inputs, labels), overlay_y_on_x(inputs, wrong_labels(labels))
        for layer in net.layers:
            h_pos, h_neg, loss = layer.train_on(h_pos, h_neg)
            epoch_loss += loss
    print(f"epoch {epoch}: loss {epoch_loss / len(train_loader):.4f}")
with torch.no_grad():
    good = net.goodness(overlay_y_on_x(x[1400:], y[1400:]))
    print(f"test loss {torch.log1p(torch.exp(2.0 - good)).mean().item():.4f}")
    print("test accuracy", net.predict(x[1400:]).eq(y[1400:]).float().mean().item())
