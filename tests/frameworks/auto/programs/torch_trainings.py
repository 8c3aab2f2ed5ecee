"""Small trainings, one after the other, each of which prints its last loss and its weights. No line of distrun's."""

import json
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as scripts do
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.set_num_threads(1)
MIXED = torch.tensor(0.0)  # instead of a loss of means and sums, which is read as the loss of rank 0's part


def data(count=103):
    x = torch.randn(count, 6)
    return TensorDataset(x, (x @ torch.randn(6, 3)).argmax(1))


def classifier(*middle):
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


def train(net, optimizer, loss_of, loader, epochs=2):
    for _ in range(epochs):
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            optimizer.step()
    return loss


def mean_loss():
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    return net, train(net, torch.optim.SGD(net.parameters(), 0.1), lambda n, x, y: F.cross_entropy(n(x), y), loader)


def ignored_targets():
    net, loader = classifier(), DataLoader(data(), batch_size=12, shuffle=True)
    criterion = nn.CrossEntropyLoss(ignore_index=1, weight=torch.tensor([0.2, 1.0, 2.0]))
    return net, train(net, torch.optim.SGD(net.parameters(), 0.1), lambda n, x, y: criterion(n(x), y), loader)


def accumulation_scaling_and_clipping():
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    optimizer, scaler = torch.optim.Adam(net.parameters(), 0.01), torch.amp.GradScaler("cpu")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(2):
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(net(x), y) / 2
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 0.3)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        schedule.step()
    return net, loss


def padded_sequences():
    words = [torch.randint(1, 9, (length,)) for length in torch.randint(3, 7, (41,)).tolist()]
    table = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 9))
    optimizer = torch.optim.SGD(table.parameters(), 0.5)
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    for x in DataLoader(words, 8, collate_fn=lambda each: nn.utils.rnn.pad_sequence(each, batch_first=True)):
        optimizer.zero_grad()
        loss = criterion(table(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    return table, loss


def evaluation_and_early_stop():
    """Every rank sees all data of an evaluation, so that all decide alike."""
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    best = float("inf")
    for _ in range(4):
        train(net, optimizer, lambda n, x, y: F.cross_entropy(n(x), y), loader, epochs=1)
        net.eval()
        seen, total = 0, torch.tensor(0.0)
        for x, y in loader:
            seen += len(x)
            total += F.cross_entropy(net(x), y, reduction="sum")
        assert seen == 103, seen
        with torch.no_grad():
            assert sum(len(x) for x, _ in loader) == 103
        loss = total / seen
        plateau.step(loss.item())
        if loss > best:
            break
        best = loss.item()
    return net, loss


def evaluated_within_an_epoch():
    """Without torch.no_grad(), and of a single batch."""
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    held_out = DataLoader(data(24), batch_size=24)
    optimizer, total = torch.optim.SGD(net.parameters(), 0.01), 0.0
    x_single, y_single = next(iter(held_out))
    assert len(x_single) == 24, x_single.shape
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y, reduction="sum").backward()
        optimizer.step()
        net.eval()
        for x_held_out, y_held_out in held_out:
            total += F.cross_entropy(net(x_held_out), y_held_out, reduction="sum").item()
        net.train()
    return net, torch.tensor(total) + F.cross_entropy(net(x_single), y_single).detach()


class Noisy(torch.optim.Optimizer):
    """An optimizer of the script's own, which draws the same noise on all ranks."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad + 0.01 * torch.randn_like(parameter), alpha=-group["lr"])


def own_optimizer():
    net, loader = classifier(), DataLoader(data(), batch_size=10)
    return net, train(net, Noisy(net.parameters()), lambda n, x, y: F.cross_entropy(n(x), y), loader)


class Shuffled(Sampler):
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __iter__(self):
        order = list(range(len(self.source)))
        random.shuffle(order)
        return iter(order)


class Drawn(TensorDataset):
    """Each sample comes with a number that numpy has drawn."""

    def __getitem__(self, index):
        return *super().__getitem__(index), np.random.rand()


def drawn_by_python():
    """An order by Python's generator, and samples with random numbers in them, which the training does not use."""
    random.seed(3)
    np.random.seed(3)
    net, samples = classifier(), data()
    loader = DataLoader(Drawn(*samples.tensors), batch_size=10, sampler=Shuffled(samples))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        for x, y, _ in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
    return net, loss


def penalty_of_a_mean_loss():
    """The gradients of a mean by the samples."""
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)

    def loss(n, x, y):
        x.requires_grad_()
        mean = F.cross_entropy(n(x), y)
        (slope,) = torch.autograd.grad(mean, x, create_graph=True)
        return mean + 200 * slope.pow(2).sum(1).mean()

    return net, train(net, torch.optim.SGD(net.parameters(), 0.1), loss, loader)


def gradients_set_by_hand():
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    optimizer, weights = torch.optim.SGD(net.parameters(), 0.1), list(net.parameters())
    for x, y in loader:
        loss = F.cross_entropy(net(x), y, reduction="sum") / 10
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        for score in net(x)[:, 0]:  # as many as the part has samples
            torch.autograd.grad(score, weights, retain_graph=True, allow_unused=True)
        optimizer.step()
    return net, loss


def hooks():
    """A mask of a weight's gradient, a clamp of each sample's, and hooks that only look, beside a checkpoint."""
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    seen = []
    net[0].weight.register_hook(lambda gradient: gradient * (torch.arange(8) % 2)[:, None])
    net[0].bias.register_hook(lambda gradient: seen.append(gradient.norm()))
    net[2].bias.register_post_accumulate_grad_hook(lambda bias: seen.append(bias.grad.norm()))

    def loss(n, x, y):
        inner = n[:2](x)
        inner.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return F.cross_entropy(checkpoint(n[2], inner, use_reentrant=True), y)

    last = train(net, torch.optim.SGD(net.parameters(), 0.1), loss, loader)
    assert len(seen) == 44, len(seen)
    return net, last


def counted_by_hand():
    """Weights of a class that the first batch does not hold, and a mask, both divided by their sums."""
    pairs, net = data(), classifier()
    rare = (torch.arange(103) % 7 == 3) & (torch.arange(103) >= 20)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y, r in DataLoader(TensorDataset(*pairs.tensors, rare), batch_size=20):
        optimizer.zero_grad()
        scores, weights = net(x), torch.tensor([1.0, 20.0])[r.long()]
        loss = (weights * F.cross_entropy(scores, y, reduction="none")).sum() / weights.sum()
        valid = (y > 0).float()
        loss = loss + (valid * scores.pow(2).mean(1)).mean() / valid.mean().clamp(min=1e-8)
        loss.backward()
        optimizer.step()
    return net, MIXED


def two_loaders():
    """One of them begins again in the middle of the other's epoch."""
    net, few, many = classifier(), DataLoader(data(30), 10, shuffle=True), DataLoader(data(), 20, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    labelled = iter(few)
    for x, _ in many:
        try:
            first, y = next(labelled)
        except StopIteration:
            labelled = iter(few)
            first, y = next(labelled)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(first), y) + (net(x + 0.1) - net(x)).pow(2).sum() / 20 + 0.1 * net(x).abs().mean()
        loss.backward()
        optimizer.step()
    return net, MIXED


def another_sum_is_read():
    """Beside the loss, a mean, a sum of the same name is read, and so is a term of the loss."""
    net, loader = classifier(), DataLoader(data(), batch_size=10, shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    total = torch.tensor(0.0)
    for x, y in loader:
        optimizer.zero_grad()
        scores = net(x)
        before = F.cross_entropy(scores, y, reduction="sum").item()
        squares = scores.pow(2).sum()
        (F.cross_entropy(scores, y) + squares / len(y)).backward()
        optimizer.step()
        assert abs(F.cross_entropy(scores, y, reduction="sum").item() / before - 1) < 1e-4
        total += before + squares.item()
    return net, total


CASES = [
    mean_loss,
    ignored_targets,
    accumulation_scaling_and_clipping,
    padded_sequences,
    evaluation_and_early_stop,
    evaluated_within_an_epoch,
    own_optimizer,
    drawn_by_python,
    penalty_of_a_mean_loss,
    gradients_set_by_hand,
    hooks,
    counted_by_hand,
    two_loaders,
    another_sum_is_read,
]

if __name__ == "__main__":
    results = {}
    for case in CASES:
        torch.manual_seed(7)
        trained, last = case()
        weights = torch.cat([each.detach().flatten() for each in trained.parameters()])
        results[case.__name__] = [last.item(), *weights.tolist()]
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
    print(len(results), "trainings")
