"""Cross-validate on a small set with SubsetRandomSampler; the last batch of each fold has very few samples."""

import argparse

import torch
from sklearn.datasets import load_wine
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset


def train_fold(loader, epochs):
    model = nn.Sequential(nn.Linear(13, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)

    wine = load_wine()
    x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0), dtype=torch.float32)
    dataset = TensorDataset(x, torch.tensor(wine.target))
    losses, predictions, truths = [], [], []
    splits = KFold(args.folds, shuffle=True, random_state=0).split(x)
    for fold, (train_ids, test_ids) in enumerate(splits):
        train_loader = DataLoader(dataset, batch_size=44, sampler=SubsetRandomSampler(train_ids.tolist()))
        test_loader = DataLoader(dataset, batch_size=10, sampler=SubsetRandomSampler(test_ids.tolist()))
        model = train_fold(train_loader, args.epochs)
        model.eval()
        with torch.no_grad():
            for inputs, targets in test_loader:
                outputs = model(inputs)
                losses.append(nn.functional.cross_entropy(outputs, targets, reduction="none"))
                predictions += outputs.argmax(1).tolist()
                truths += targets.tolist()
        print(f"fold {fold}: {len(train_ids)} training samples, {len(test_ids)} for the test")
    score = f1_score(truths, predictions, average="macro")
    print(f"{len(truths)} predictions: F1 {score:.4f}, test loss {torch.cat(losses).mean():.4f}")


if __name__ == "__main__":
    main()
