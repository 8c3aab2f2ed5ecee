"""Sum sequences of different lengths; a batch sampler of one's own puts those of similar length together."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Sequences(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(3, 15, (count,), generator=generator).tolist()
        self.items = [torch.randn(length, 1, generator=generator) for length in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index], self.items[index].sum()


class LengthBatchSampler(Sampler):
    """Batches of sequences of similar length, in a random order."""

    def __init__(self, dataset, batch_size):
        ordered = sorted(range(len(dataset)), key=lambda i: len(dataset.items[i]))
        self.batches = [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]

    def __iter__(self):
        yield from random.sample(self.batches, len(self.batches))

    def __len__(self):
        return len(self.batches)


def collate(samples):
    sequences, sums = zip(*samples, strict=True)
    return pad_sequence(sequences, batch_first=True), torch.stack(sums)


torch.manual_seed(0)
random.seed(0)
dataset = Sequences(400)
loader = DataLoader(dataset, batch_sampler=LengthBatchSampler(dataset, 16), collate_fn=collate)
rnn, head = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for epoch in range(3):
    total = 0.0
    for sequences, sums in loader:
        loss = nn.functional.mse_loss(head(rnn(sequences)[1][-1]).squeeze(1), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
