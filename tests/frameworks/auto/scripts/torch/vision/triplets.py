"""Learn an embedding of digits with a triplet margin loss on triplets that the dataset draws at random."""

import argparse
import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Triplets(Dataset):
    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = digits.target.tolist()
        self.of_label = {label: [i for i, y in enumerate(self.labels) if y == label] for label in range(10)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        label = self.labels[index]
        other = random.choice([x for x in range(10) if x != label])
        positive, negative = random.choice(self.of_label[label]), random.choice(self.of_label[other])
        return self.images[index], self.images[positive], self.images[negative]


def run_epoch(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    losses = []
    with torch.set_grad_enabled(optimizer is not None):
        for anchor, positive, negative in loader:
            loss = criterion(model(anchor), model(positive), model(negative))
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)

    train_set, test_set = random_split(Triplets(), [1200, 597], generator=torch.Generator().manual_seed(42))
    train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=50)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    criterion = nn.TripletMarginLoss(margin=1.0)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    for epoch in range(args.epochs):
        train_loss = run_epoch(model, train_loader, criterion, optimizer)
        scheduler.step()
        random.seed(epoch)  # the same triplets are tested in every run
        test_loss = run_epoch(model, test_loader, criterion)
        print(f"epoch {epoch}: train loss {train_loss:.4f}, test loss {test_loss:.4f}")
    torch.save(model.state_dict(), "triplets.pt")


if __name__ == "__main__":
    main()
