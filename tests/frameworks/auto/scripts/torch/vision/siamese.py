"""Train a siamese network on pairs of digits, in the shape of PyTorch's example."""

import argparse
import random

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class SiameseNetwork(nn.Module):
    """Two images go through one network; whether they are of one class is told from both of its outputs."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(144, 64), nn.ReLU(inplace=True), nn.Linear(64, 1))
        self.body.apply(self.init_weights)
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward(self, input1, input2):
        return torch.sigmoid(self.fc(torch.cat((self.body(input1), self.body(input2)), 1)))


class APP_MATCHER(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.groups = {i: [j for j, label in enumerate(labels.tolist()) if label == i] for i in range(10)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        selected = random.randint(0, 9)
        first = random.choice(self.groups[selected])
        if index % 2 == 0:
            second = random.choice(self.groups[selected])
            target = torch.tensor(1, dtype=torch.float)
        else:
            other = random.choice([i for i in range(10) if i != selected])
            second = random.choice(self.groups[other])
            target = torch.tensor(0, dtype=torch.float)
        return self.images[first].unsqueeze(0), self.images[second].unsqueeze(0), target


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    criterion = nn.BCELoss()
    for batch_idx, (images_1, images_2, targets) in enumerate(train_loader):
        optimizer.zero_grad()
        outputs = model(images_1, images_2).squeeze()
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            percent = 100.0 * batch_idx / len(train_loader)
            print(f"Train Epoch: {epoch} [{percent:.0f}%]\tLoss: {loss.item():.6f}")


def test(model, test_loader):
    model.eval()
    test_loss, correct = 0, 0
    criterion = nn.BCELoss()
    with torch.no_grad():
        for images_1, images_2, targets in test_loader:
            outputs = model(images_1, images_2).squeeze()
            test_loss += criterion(outputs, targets).sum().item() * len(targets)
            correct += torch.where(outputs > 0.5, 1, 0).eq(targets.view_as(outputs)).sum().item()
    test_loss /= len(test_loader.dataset)
    print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {correct}/{len(test_loader.dataset)}")


def main():
    parser = argparse.ArgumentParser(description="PyTorch Siamese network Example")
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(1)
    random.seed(1)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train_loader = DataLoader(APP_MATCHER(images[:1400], labels[:1400]), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(APP_MATCHER(images[1400:], labels[1400:]), batch_size=397)
    model = SiameseNetwork()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        random.seed(99)
        test(model, test_loader)
        random.seed(epoch)
        scheduler.step()


if __name__ == "__main__":
    main()
