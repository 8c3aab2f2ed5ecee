"""Trainings that --auto refuses; the arguments name them. Each refusal is caught, and its reason is printed."""

import itertools
import os
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as scripts do
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)

torch.set_num_threads(1)
PAIRS = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PAIRS)


class Unlike(Sampler):
    def __len__(self):
        return 48

    def __iter__(self):
        return iter(random.SystemRandom().sample(range(48), 48))


def mean_loss(net, x, y):
    return F.cross_entropy(net(x), y)


def train(loss_of=mean_loss, loader=None, change=lambda net, optimizer: None):
    """Train a small net, in which `change` has changed something before."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    change(net, optimizer)
    for x, y in DataLoader(PAIRS, batch_size=8) if loader is None else loader:
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


# Losses ---------------------------------------------------------------------------------------------------------------


def decides_by_the_loss_of_a_part(net, x, y):
    scores = net(x)
    factor = 1 if F.cross_entropy(scores.detach(), y).item() > 0.5 else 2
    return factor * F.cross_entropy(scores, y)


def backward_of_every_three_samples(net, x, y):
    pairs = zip(x.split(3), y.split(3), strict=True)
    *firsts, last = [F.cross_entropy(net(some), of, reduction="sum") for some, of in pairs]
    for each in firsts:
        each.backward()
    return last


def normalised_weights(net, x, y):
    weights = torch.tensor([1.0, 2.0, 5.0])[y]
    return (weights / weights.sum() * F.cross_entropy(net(x), y, reduction="none")).sum()


def weights_of_the_batch(net, x, y):
    positive = (y == 2).float()
    weight = (len(y) - positive.sum()) / positive.sum().clamp(min=1)
    return F.binary_cross_entropy_with_logits(net(x)[:, 0], positive, pos_weight=weight)


def second_derivatives_of_weights(net, x, y):
    mean = F.cross_entropy(net(x), y)
    return mean + torch.autograd.grad(mean, net.weight, create_graph=True)[0].norm()


def statistics_in_the_second_loss(net, x, y):
    """A loss like the first one, with a second `backward()` in the same batch."""
    F.cross_entropy(net(x), y).backward()
    return F.cross_entropy(net(x - x.mean(0)), y)


class Summed(torch.autograd.Function):
    """A sum of squares whose data the graph does not show."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return (x @ weight.T).pow(2).sum()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return None, 2 * gradient * (x @ weight.T).T @ x


class Vector:
    def __init__(self, losses):
        self.losses = losses

    def backward(self):
        self.losses.backward(torch.rand_like(self.losses))


SCALE = nn.Parameter(torch.ones(()))
LOSSES = {
    "second_half_of_the_batch": lambda net, x, y: F.cross_entropy(net(x[len(x) // 2 :]), y[len(x) // 2 :]),
    "decides_by_a_count_of_a_part": lambda net, x, y: F.cross_entropy(net(x), y) * (1 if (y == 1).sum() > 2 else 2),
    "contrasts_samples": lambda net, x, y: (net(x) @ net(x).T).logsumexp(1).mean(),
    "root_of_a_mean": lambda net, x, y: F.cross_entropy(net(x), y).sqrt(),
    "normalised_inputs": lambda net, x, y: F.cross_entropy(net((x - x.mean(0)) / x.std(0)), y),
    "scaled_inputs": lambda net, x, y: F.cross_entropy(net(x / x.max()), y),
    "vector": lambda net, x, y: Vector(F.cross_entropy(net(x), y, reduction="none")),
    "hardest_samples": lambda net, x, y: F.cross_entropy(net(x), y, reduction="none").topk(len(y) // 2).values.mean(),
    "loss_within_a_function": lambda net, x, y: Summed.apply(x, net.weight),
    "learned_weight_of_a_mixture": lambda net, x, y: (F.cross_entropy(net(x), y) + net(x).pow(2).sum()) * SCALE,
}
LOSSES |= {
    each.__name__: each
    for each in (
        *(decides_by_the_loss_of_a_part, backward_of_every_three_samples, normalised_weights, weights_of_the_batch),
        *(second_derivatives_of_weights, statistics_in_the_second_loss),
    )
}

# Batches --------------------------------------------------------------------------------------------------------------


def own_batch_sampler():
    class Mine(BatchSampler):
        pass

    return DataLoader(PAIRS, batch_sampler=Mine(RandomSampler(PAIRS), 8, False))


def unlike_data():
    rng = np.random.default_rng()
    x = torch.from_numpy(rng.normal(size=(48, 6)).astype(np.float32))
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)


LOADERS = {
    "iterable": lambda: DataLoader(Stream(), batch_size=8),
    "own_batch_sampler": own_batch_sampler,
    "no_batches": lambda: DataLoader([(torch.ones(4, 6), torch.ones(4, dtype=torch.long))] * 3, batch_size=None),
    "unlike_samples": lambda: DataLoader(PAIRS, batch_size=8, sampler=Unlike()),
    "unlike_data": unlike_data,
    "small_batches": lambda: DataLoader(PAIRS, batch_size=2),
    "sliced_by_hand": lambda: [PAIRS[first : first + 8] for first in range(0, 48, 8)],
    "cycled": lambda: itertools.islice(itertools.cycle(DataLoader(PAIRS, batch_size=8)), 9),
}

# What is changed before -----------------------------------------------------------------------------------------------

CHANGES = {
    "trains_in_evaluation_mode": lambda net, _: net.eval(),
    "clamped_by_a_hook": lambda net, _: net.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1)),
    "clamped_when_accumulated": lambda net, _: net.weight.register_post_accumulate_grad_hook(
        lambda weight: weight.grad.clamp_(-1, 1)
    ),
    "steps_in_backward": lambda net, sgd: net.weight.register_post_accumulate_grad_hook(lambda weight: sgd.step()),
}

# Other loops ----------------------------------------------------------------------------------------------------------


def evaluates_without_saying_so():
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    assert optimizer
    sum(F.cross_entropy(net(x), y).item() for x, y in DataLoader(PAIRS, batch_size=8))


def shared_parameters():
    net = nn.Linear(6, 3)
    pair = torch.optim.SGD(net.parameters(), 0.1), torch.optim.Adam([net.bias])
    for x, y in DataLoader(PAIRS, batch_size=8):
        F.cross_entropy(net(x), y).backward()
        pair[0].step()


def no_optimizer():
    net = nn.Linear(6, 3)
    for x, y in DataLoader(PAIRS, batch_size=8):
        F.cross_entropy(net(x), y).backward()
        for parameter in net.parameters():
            parameter.data -= 0.1 * parameter.grad


def new_loss_in_the_middle():
    counts = itertools.count()
    train(
        lambda net, x, y: F.cross_entropy(net(x), y) + (net(x).mean().abs() if next(counts) == 16 else 0),
        DataLoader(ConcatDataset([PAIRS] * 3), batch_size=8),
    )


def noise_on_the_weights():
    """Each rank draws noise of its own in the training loop."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(PAIRS, batch_size=8):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        net.bias.data.add_(torch.randn(3))


def running_statistics_of_the_part():
    def loss(net, x, y):
        net.mean.lerp_(x.mean(0), 0.1)
        return F.cross_entropy(net(x), y)

    train(loss, change=lambda net, _: net.register_buffer("mean", torch.zeros(6)))


def process_group():
    torch.distributed.__dict__["init_process_group"]("gloo")  # not seen in the source


def counted_after_the_first_batch():
    """Nothing counts in the first two batches, which are tried: the divisor, at least 1, looks like a constant."""
    valid = (torch.arange(48) % 5 > 2) & (torch.arange(48) >= 16)
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y, v in DataLoader(TensorDataset(*PAIRS.tensors, valid.float()), batch_size=8):
        optimizer.zero_grad()
        ((v * F.cross_entropy(net(x), y, reduction="none")).sum() / v.sum().clamp(min=1)).backward()
        optimizer.step()


def second_loader_from_the_middle():
    others = None

    def loss(net, x, y):
        nonlocal others
        if others is None and next(steps) == 17:
            others = iter(DataLoader(PAIRS, batch_size=8))
        if others is None:
            return F.cross_entropy(net(x), y)
        return net(next(others)[0]).pow(2).sum() + net(x).abs().sum()

    steps = itertools.count()
    train(loss, DataLoader(ConcatDataset([PAIRS] * 4), batch_size=8))


def skips_a_batch_on_one_rank():
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step, (x, y) in enumerate(DataLoader(ConcatDataset([PAIRS] * 4), batch_size=8), 1):
        if step != 19 or os.environ["RANK"] == "0":  # a step that is not tried
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()


for name in sys.argv[1:]:
    try:
        if name in LOSSES:
            train(LOSSES[name])
        elif name in LOADERS:
            train(loader=LOADERS[name]())
        elif name in CHANGES:
            train(change=CHANGES[name])
        else:
            globals()[name]()
    except SystemExit as refusal:
        print(f"{name}: {refusal.code}: {refusal.reason}", flush=True)
    else:
        print(f"{name}: not refused", flush=True)
