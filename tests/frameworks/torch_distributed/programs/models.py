"""A small network, the batches of each rank, and training it; whatever the ranks know of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def batches(count: int, rank: int) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of a rank."""
    random = torch.Generator().manual_seed(100 + rank)
    for _ in range(count):
        yield torch.randn(8, 16, generator=random), torch.randint(0, 4, (8,), generator=random)


def mlp(features: int = 16, hidden: int = 32, classes: int = 4) -> torch.nn.Sequential:
    """Return a small network, the same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(features, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, classes),
    )  # fmt: skip


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, given: Iterable[tuple[Any, Any]]) -> list[float]:
    """Train on some batches; return the losses."""
    losses = []
    for inputs, targets in given:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
