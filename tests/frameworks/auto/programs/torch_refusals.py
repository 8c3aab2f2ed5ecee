"""Trainings that --auto refuses, one after the other: each is caught, and its reason is printed."""

import itertools
import os
import random

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


def train(loader, loss_of=lambda net, x, y: F.cross_entropy(net(x), y), evaluates=False):
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    if evaluates:
        net.eval()
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


def second_half_of_the_batch():
    train(DataLoader(PAIRS, 8), lambda net, x, y: F.cross_entropy(net(x[len(x) // 2 :]), y[len(x) // 2 :]))


def decides_by_the_loss_of_a_part():
    def loss_of(net, x, y):
        scores = net(x)
        factor = 1 if F.cross_entropy(scores.detach(), y).item() > 0.5 else 2
        return factor * F.cross_entropy(scores, y)

    train(DataLoader(PAIRS, 8), loss_of)


def decides_by_a_count_of_a_part():
    def loss_of(net, x, y):
        return F.cross_entropy(net(x), y) * (1 if (y == 1).sum() > 2 else 2)

    train(DataLoader(PAIRS, 8), loss_of)


def counts_on_whole_batches():
    train(DataLoader(PAIRS, 8), lambda net, x, y: F.cross_entropy(net(x).view(8, -1), y))


def backward_of_every_three_samples():
    def loss_of(net, x, y):
        pairs = zip(x.split(3), y.split(3), strict=True)
        *firsts, last = [F.cross_entropy(net(some), of, reduction="sum") for some, of in pairs]
        for each in firsts:
            each.backward()
        return last

    train(DataLoader(PAIRS, 8), loss_of)


def iterable():
    train(DataLoader(Stream(), batch_size=8))


def own_batch_sampler():
    class Mine(BatchSampler):
        pass

    train(DataLoader(PAIRS, batch_sampler=Mine(RandomSampler(PAIRS), 8, False)))


def no_batches():
    train(DataLoader([(torch.ones(4, 6), torch.ones(4, dtype=torch.long))] * 3, batch_size=None))


def unlike_samples():
    train(DataLoader(PAIRS, batch_size=8, sampler=Unlike()))


def unlike_data():
    rng = np.random.default_rng()
    x = torch.from_numpy(rng.normal(size=(48, 6)).astype(np.float32))
    train(DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True))


def small_batches():
    train(DataLoader(PAIRS, batch_size=2))


def sliced_by_hand():
    train([PAIRS[first : first + 8] for first in range(0, 48, 8)])


def cycled():
    train(itertools.islice(itertools.cycle(DataLoader(PAIRS, batch_size=8)), 9))


def trains_in_evaluation_mode():
    train(DataLoader(PAIRS, batch_size=8), evaluates=True)


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


def contrasts_samples():
    train(DataLoader(PAIRS, batch_size=8), lambda net, x, y: (net(x) @ net(x).T).logsumexp(1).mean())


def root_of_a_mean():
    train(DataLoader(PAIRS, batch_size=8), lambda net, x, y: F.cross_entropy(net(x), y).sqrt())


def normalised_inputs():
    train(DataLoader(PAIRS, batch_size=8), lambda net, x, y: F.cross_entropy(net((x - x.mean(0)) / x.std(0)), y))


def normalised_weights():
    def loss_of(net, x, y):
        weights = torch.tensor([1.0, 2.0, 5.0])[y]
        return (weights / weights.sum() * F.cross_entropy(net(x), y, reduction="none")).sum()

    train(DataLoader(PAIRS, batch_size=8), loss_of)


def weights_of_the_batch():
    def loss_of(net, x, y):
        positive = (y == 2).float()
        weight = (len(y) - positive.sum()) / positive.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], positive, pos_weight=weight)

    train(DataLoader(PAIRS, batch_size=8), loss_of)


def scaled_inputs():
    train(DataLoader(PAIRS, batch_size=8), lambda net, x, y: F.cross_entropy(net(x / x.max()), y))


def statistics_in_the_second_loss():
    """A loss like the first one, with a second `backward()` in the same batch."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(PAIRS, batch_size=8):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        F.cross_entropy(net(x - x.mean(0)), y).backward()
        optimizer.step()


def new_loss_in_the_middle():
    counts = itertools.count()
    train(
        DataLoader(ConcatDataset([PAIRS] * 3), batch_size=8),
        lambda net, x, y: F.cross_entropy(net(x), y) + (net(x).mean().abs() if next(counts) == 16 else 0),
    )


def vector():
    train(DataLoader(PAIRS, batch_size=8), lambda net, x, y: _OfVector(F.cross_entropy(net(x), y, reduction="none")))


class _OfVector:
    def __init__(self, losses):
        self.losses = losses

    def backward(self):
        self.losses.backward(torch.rand_like(self.losses))


def noise_on_the_weights():
    """Each rank draws noise of its own in the training loop."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(PAIRS, batch_size=8):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        net.bias.data.add_(torch.randn(3))


def train_with(change, loss_of=lambda net, x, y: F.cross_entropy(net(x), y)):
    """Train a net that something is changed in before."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    change(net, optimizer)
    for x, y in DataLoader(PAIRS, batch_size=8):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


def running_statistics_of_the_part():
    def change(net, _):
        net.register_buffer("mean", torch.zeros(6))

    def loss(net, x, y):
        net.mean.lerp_(x.mean(0), 0.1)
        return F.cross_entropy(net(x), y)

    train_with(change, loss)


def clamped_by_a_hook():
    train_with(lambda net, _: net.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1)))


def clamped_when_accumulated():
    train_with(lambda net, _: net.weight.register_post_accumulate_grad_hook(lambda weight: weight.grad.clamp_(-1, 1)))


def steps_in_backward():
    train_with(lambda net, sgd: net.weight.register_post_accumulate_grad_hook(lambda weight: sgd.step()))


def second_derivatives_of_weights():
    def loss(net, x, y):
        mean = F.cross_entropy(net(x), y)
        return mean + torch.autograd.grad(mean, net.weight, create_graph=True)[0].norm()

    train_with(lambda *_: None, loss)


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


def hardest_samples():
    train(
        DataLoader(PAIRS, batch_size=8),
        lambda net, x, y: F.cross_entropy(net(x), y, reduction="none").topk(len(y) // 2).values.mean(),
    )


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


def loss_within_a_function():
    train(DataLoader(PAIRS, batch_size=8), lambda net, x, y: Summed.apply(x, net.weight))


def learned_weight_of_a_mixture():
    scale = nn.Parameter(torch.ones(()))

    def loss(net, x, y):
        return (F.cross_entropy(net(x), y) + net(x).pow(2).sum()) * scale

    train(DataLoader(PAIRS, batch_size=8), loss)


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
    train(DataLoader(ConcatDataset([PAIRS] * 4), batch_size=8), loss)


def skips_a_batch_on_one_rank():
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step, (x, y) in enumerate(DataLoader(ConcatDataset([PAIRS] * 4), batch_size=8), 1):
        if step != 19 or os.environ["RANK"] == "0":  # a step that is not tried
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()


CASES = [
    sliced_by_hand,
    iterable,
    own_batch_sampler,
    no_batches,
    unlike_samples,
    unlike_data,
    small_batches,
    cycled,
    trains_in_evaluation_mode,
    evaluates_without_saying_so,
    shared_parameters,
    no_optimizer,
    contrasts_samples,
    root_of_a_mean,
    normalised_inputs,
    normalised_weights,
    weights_of_the_batch,
    scaled_inputs,
    statistics_in_the_second_loss,
    new_loss_in_the_middle,
    vector,
    noise_on_the_weights,
    running_statistics_of_the_part,
    clamped_by_a_hook,
    clamped_when_accumulated,
    steps_in_backward,
    second_derivatives_of_weights,
    process_group,
    counted_after_the_first_batch,
    hardest_samples,
    loss_within_a_function,
    learned_weight_of_a_mixture,
    second_loader_from_the_middle,
    second_half_of_the_batch,
    decides_by_the_loss_of_a_part,
    decides_by_a_count_of_a_part,
    backward_of_every_three_samples,
    skips_a_batch_on_one_rank,
]

for case in CASES:
    try:
        case()
    except SystemExit as refusal:
        print(f"{case.__name__}: {refusal.code}: {refusal.reason}", flush=True)
    else:
        print(f"{case.__name__}: not refused", flush=True)
