"""Workers of parameter servers: synchronous ones train as one process does, and others train."""

from __future__ import annotations

import copy
from functools import partial

import torch
from expecting import raises

import distrun.torch as dt
from distrun.errors import NotOfferedError, UsageError

STEPS = 4
OPTIMIZERS = {
    "plain SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "Nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, maximize=True),
    "Adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, betas=(0.8, 0.99)),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2, weight_decay=0.01),
}
SPARSE = {
    "sparse SGD": partial(torch.optim.SGD, lr=0.5),
    "sparse Adagrad": partial(torch.optim.Adagrad, lr=0.5),
    "SparseAdam": partial(torch.optim.SparseAdam, lr=0.1),
}


class Dense(torch.nn.Module):
    """Three layers, one of which takes part in every other step only."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, step):
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(x)) if step % 2 == 0 else x)


def batches(step, shape, high=None):
    """The batches of all workers in a step."""
    generator = torch.Generator().manual_seed(step)
    if high is not None:
        return [torch.randint(high, shape, generator=generator) for _ in range(dt.size())]
    return [torch.randn(shape, generator=generator) for _ in range(dt.size())]


def train(model, optimizer, steps, own, scheduler=None):
    """Train on this worker's batches, or on the batches of all workers as one process would."""
    for step in steps:
        optimizer.zero_grad()
        every = batches(step, (4, 6))
        for x in [every[dt.rank()]] if own else every:
            loss = model(x, step).square().mean()
            (loss if own else loss / len(every)).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def same(one, other, name):
    """The parameters of two models are the same, up to rounding."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")


def same_state(one, other, name):
    """Two states of optimizers are the same, up to rounding."""
    assert one["state"].keys() == other["state"].keys(), (name, one["state"].keys(), other["state"].keys())
    for index, entries in other["state"].items():
        for entry, value in entries.items():
            if value is not None:
                mine = one["state"][index][entry]
                assert type(mine) is type(value), (name, entry, type(mine))
                torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")


def check_synchronous(name, make):
    """Synchronous workers do as one process does, and the state goes on in plain and in other optimizers."""
    torch.manual_seed(1 + dt.rank())  # the parameters of rank 0 count
    model = Dense()
    groups = [{"params": model.first.parameters(), "lr": 0.02}, {"params": [*model.middle.parameters()]}]
    optimizer = make([*groups, {"params": model.last.parameters()}])
    optimizer = dt.AsyncOptimizer(optimizer, staleness=0, named_parameters=model.named_parameters())
    alone = copy.deepcopy(model)
    groups = [{"params": alone.first.parameters(), "lr": 0.02}, {"params": [*alone.middle.parameters()]}]
    plain = make([*groups, {"params": alone.last.parameters()}])
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (optimizer, plain)]
    train(model, optimizer, range(STEPS), True, schedulers[0])
    train(alone, plain, range(STEPS), False, schedulers[1])
    same(model, alone, name)
    same_state(optimizer.state_dict(), plain.state_dict(), name)
    state = copy.deepcopy(plain.state_dict())
    optimizer.close()
    again = copy.deepcopy(alone)
    restored = make([{"params": layer.parameters()} for layer in (again.first, again.middle, again.last)])
    restored = dt.AsyncOptimizer(restored, staleness=0)
    restored.load_state_dict(state)
    train(again, restored, range(STEPS, 2 * STEPS), True)
    train(alone, plain, range(STEPS, 2 * STEPS), False)
    same(again, alone, f"{name}, restored")
    restored.close()


def check_sparse(name, make):
    """Embeddings by rows: each worker sees some of them."""
    torch.manual_seed(1 + dt.rank())
    model = torch.nn.Embedding(50, 3, sparse=True)
    optimizer = dt.AsyncOptimizer(make(model.parameters()), staleness=0, model=model)
    alone = torch.nn.Embedding(50, 3, sparse=True)
    optimizer.synchronize()
    alone.load_state_dict(model.state_dict())
    plain = make(alone.parameters())
    for step in range(STEPS):
        every = batches(step, (5,), 20)
        optimizer.zero_grad()
        model(every[dt.rank()]).square().sum().backward()
        optimizer.step()
        plain.zero_grad()
        (sum(alone(ids).square().sum() for ids in every) / len(every)).backward()
        plain.step()
    optimizer.synchronize()
    same(model, alone, name)
    same_state(optimizer.state_dict(), plain.state_dict(), name)
    optimizer.close()
    model(torch.arange(3))  # it pulls nothing more
    with raises(UsageError, "this worker has left its parameter servers"):
        optimizer.synchronize()


def check_asynchronous(staleness, delayed, overlap):
    """Workers that do not wait for each other learn, too."""
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5, nesterov=True)
    optimizer = dt.AsyncOptimizer(sgd, staleness, delayed_nesterov=delayed, overlap=overlap)
    first = 0.0
    for step in range(60):
        x = batches(step, (16, 6))[dt.rank()]
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        first = loss.item() if step == 0 else first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dt.barrier()
    optimizer.synchronize()
    x = batches(99, (16, 6))[0]
    last = (model(x) - x.sum(1, keepdim=True)).square().mean().item()
    assert last < first / 4, (staleness, delayed, first, last)
    optimizer.close()


def check_refusals():
    """Each refusal is one sentence."""
    model = torch.nn.Linear(2, 2)
    sgd = partial(torch.optim.SGD, list(model.parameters()), lr=0.1)
    table = torch.nn.Embedding(4, 2, sparse=True)
    for text, error, call in (
        ("staleness=-1 is no number of steps", UsageError, lambda: dt.AsyncOptimizer(sgd(), -1)),
        ("staleness=1.5 is no number of steps", UsageError, lambda: dt.AsyncOptimizer(sgd(), 1.5)),
        ("RMSprop cannot run on parameter servers", NotOfferedError,
         lambda: dt.AsyncOptimizer(torch.optim.RMSprop(model.parameters()))),
        ("Adam(amsgrad=True) is not offered", NotOfferedError,
         lambda: dt.AsyncOptimizer(torch.optim.Adam(model.parameters(), amsgrad=True))),
        ("delayed_nesterov=True corrects the momentum", UsageError,
         lambda: dt.AsyncOptimizer(sgd(), delayed_nesterov=True)),
        ("named_parameters does not name parameter 0", UsageError,
         lambda: dt.AsyncOptimizer(sgd(), named_parameters=[])),
        ("momentum and weight decay make dense", UsageError,
         lambda: dt.AsyncOptimizer(torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9), model=table)),
    ):  # fmt: skip
        with raises(error, text):
            call()


def main():
    dt.init()
    check_refusals()
    for name, make in OPTIMIZERS.items():
        check_synchronous(name, make)
    for name, make in SPARSE.items():
        check_sparse(name, make)
    for staleness, delayed, overlap in ((2, False, True), (float("inf"), True, True), (3, False, False)):
        check_asynchronous(staleness, delayed, overlap)
    print("all is well", flush=True)


main()
