"""Train an LSTM language model on windows of words that a DataLoader serves, and report its perplexity."""

import argparse
import math
import re

import torch
from sklearn import datasets
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Every window of `bptt` words, and the same shifted by one."""

    def __init__(self, ids, bptt):
        self.ids, self.bptt = ids, bptt

    def __len__(self):
        return (len(self.ids) - 1) // self.bptt

    def __getitem__(self, index):
        start = index * self.bptt
        return self.ids[start : start + self.bptt], self.ids[start + 1 : start + self.bptt + 1]


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp=32, nhid=32, tie_weights=True):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, batch_first=True)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, tokens):
        output, _ = self.rnn(self.encoder(tokens))
        return self.decoder(output)


def evaluate(model, loader, criterion):
    model.eval()
    total_loss, count = 0.0, 0
    with torch.no_grad():
        for data, targets in loader:
            total_loss += len(data) * criterion(model(data).flatten(0, 1), targets.flatten()).item()
            count += len(data)
    return total_loss / count


def main():
    parser = argparse.ArgumentParser(description="LSTM language model")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()
    torch.manual_seed(1111)

    loaders = [datasets.load_iris, datasets.load_breast_cancer, datasets.load_diabetes, datasets.load_wine]
    words = re.findall(r"[a-z]+", " ".join(load().DESCR for load in loaders).lower())
    vocab = {word: number for number, word in enumerate(sorted(set(words)))}
    ids = torch.tensor([vocab[word] for word in words])
    split = len(ids) * 4 // 5
    train_loader = DataLoader(Windows(ids[:split], 6), batch_size=10, shuffle=True)
    val_loader = DataLoader(Windows(ids[split:], 6), batch_size=20)

    model = RNNModel(len(vocab))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best_val_loss = None
    for epoch in range(1, args.epochs + 1):
        model.train()
        for data, targets in train_loader:
            model.zero_grad()
            loss = criterion(model(data).flatten(0, 1), targets.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
        val_loss = evaluate(model, val_loader, criterion)
        print(f"| end of epoch {epoch:3d} | valid loss {val_loss:5.4f} | valid ppl {math.exp(val_loss):8.2f}")
        if best_val_loss is None or val_loss < best_val_loss:
            with open(args.save, "wb") as f:
                torch.save(model, f)
            best_val_loss = val_loss
        else:
            optimizer.param_groups[0]["lr"] /= 4.0

    with open(args.save, "rb") as f:
        model = torch.load(f, weights_only=False)
    test_loss = evaluate(model, val_loader, criterion)
    print(f"| End of training | test loss {test_loss:5.4f} | test ppl {math.exp(test_loss):8.2f}")


if __name__ == "__main__":
    main()
