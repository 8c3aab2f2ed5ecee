"""Training in one process and on all ranks together, which are to do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from checking import batches, close, loss_of, mine, network, same_on_all_ranks

import distrun.torch as hvd

Batch = tuple[torch.Tensor, torch.Tensor]


def train_on(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *given: Batch) -> None:
    """Make a step of training on each batch."""
    for batch in given:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def closure_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Callable[[], torch.Tensor]:
    """A closure for a step, as LBFGS needs it."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    return closure


def trained_alone(
    make: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer], steps: int
) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """The small model and its optimizer after steps of this rank alone, on batches of its own."""
    model = network()
    optimizer = make(model.parameters())
    for features, targets in batches(steps):
        optimizer.step(closure_of(model, optimizer, (features + hvd.rank(), targets)))
    return model, optimizer


def whole(batch: Batch) -> Batch:
    """The part of one process in a combined batch."""
    return batch


def plain(optimizer: torch.optim.Optimizer, *_: object, **__: object) -> torch.optim.Optimizer:
    """The optimizer of one process."""
    return optimizer


def wrapped(optimizer: torch.optim.Optimizer, model: torch.nn.Module, **options: object) -> torch.optim.Optimizer:
    """The optimizer of all ranks together."""
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def made(**options: object) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """A small model, and its optimizer of all ranks together."""
    model = network()
    return model, wrapped(torch.optim.SGD(model.parameters(), 0.1), model, **options)


def as_one_process(
    run: Callable[..., list[torch.Tensor]], *arguments: object, tolerance: float = 1e-6, **options: object
) -> None:
    """Check that `run(wrap, part, *arguments, **options)` does on all ranks together what it does in one process."""
    together = run(wrapped, mine, *arguments, **options)
    assert close(together, run(plain, whole, *arguments, **options), tolerance), (arguments, options)
    assert same_on_all_ranks(together)
