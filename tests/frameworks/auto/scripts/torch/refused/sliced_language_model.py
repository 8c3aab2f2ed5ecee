"""Train an LSTM language model on text that get_batch slices by hand; PyTorch's word_language_model has this shape."""

import argparse
import math
import re

import torch
from sklearn import datasets
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--bptt", type=int, default=8)
args = parser.parse_args()
torch.manual_seed(1111)

words = re.findall(r"[a-z]+", (datasets.load_iris().DESCR + datasets.load_wine().DESCR).lower())
vocab = {word: number for number, word in enumerate(sorted(set(words)))}


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def repackage_hidden(h):
    return tuple(v.detach() for v in h)


class RNNModel(nn.Module):
    def __init__(self, ntoken, size=32):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, size)
        self.rnn = nn.LSTM(size, size)
        self.decoder = nn.Linear(size, ntoken)

    def forward(self, data, hidden):
        output, hidden = self.rnn(self.encoder(data), hidden)
        return self.decoder(output).flatten(0, 1), hidden


train_data = batchify(torch.tensor([vocab[word] for word in words]), 10)
model = RNNModel(len(vocab))
criterion = nn.CrossEntropyLoss()
lr = 20.0
for epoch in range(1, args.epochs + 1):
    model.train()
    total_loss = 0.0
    hidden = (torch.zeros(1, 10, 32), torch.zeros(1, 10, 32))
    for i in range(0, train_data.size(0) - 1, args.bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        output, hidden = model(data, repackage_hidden(hidden))
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item() * len(data)
    mean = total_loss / len(train_data)
    print(f"| end of epoch {epoch:3d} | loss {mean:5.2f} | ppl {math.exp(mean):8.2f}")
torch.save(model, "model.pt")
