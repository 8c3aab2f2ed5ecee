"""Train a small ResNet with SGD, momentum and StepLR, in the shape of PyTorch's CIFAR-10 recipes."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Handwritten digits as CIFAR-like images: three channels of 16 x 16 pixels."""

    def __init__(self, train, transform=None):
        digits = load_digits()
        chosen = slice(None, 1200) if train else slice(1200, None)
        self.images = torch.tensor(digits.images[chosen], dtype=torch.float32)
        self.labels = torch.tensor(digits.target[chosen])
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].repeat_interleave(2, 0).repeat_interleave(2, 1).expand(3, 16, 16)
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = nn.Sequential()
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.downsample(x))


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Block(8, 8),
        Block(8, 16, 2),
        Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def evaluate(model, loader, criterion):
    model.eval()
    total_loss, correct, total = 0.0, 0, 0
    with torch.inference_mode():
        for inputs, targets in loader:
            outputs = model(inputs)
            total_loss += criterion(outputs, targets).item() * targets.size(0)
            correct += (outputs.argmax(1) == targets).sum().item()
            total += targets.size(0)
    return total_loss / total, correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(0)

    normalize = lambda image: (image - 4.9) / 6.0  # noqa: E731
    train_loader = DataLoader(Digits(True, normalize), batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(Digits(False, normalize), batch_size=200)

    model = build_model()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.2)
    for epoch in range(args.epochs):
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
        scheduler.step()
        test_loss, accuracy = evaluate(model, test_loader, criterion)
        print(f"epoch {epoch}: lr {scheduler.get_last_lr()[0]:.4f}, test loss {test_loss:.4f}, accuracy {accuracy:.4f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "resnet.pt")


if __name__ == "__main__":
    main()
