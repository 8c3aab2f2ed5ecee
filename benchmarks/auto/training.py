"""The training loop that both scripts have, as a plain script writes it, and the durations of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.step import SIZES, Size, model_of

BATCH = 64
"""The samples of all ranks in a step."""
STEPS = {128: 100, 2048: 15}
"""The steps of an epoch, by the width of the model."""

Prepare = Callable[[TensorDataset, nn.Module, torch.optim.Optimizer], tuple[DataLoader, torch.optim.Optimizer]]
"""The function by which a script makes the loader of its batches, and its optimizer."""


def run(prepare: Prepare) -> dict[str, list[float]]:
    """Train all models; return the durations of steps by the row of the table."""
    torch.set_num_threads(1)
    found = {}
    for size in SIZES:
        for is_read in (False, True):
            title = f"{size.layers} x Linear({size.width}){', loss.item()' if is_read else ''}"
            found[title] = list(_train(size, prepare, is_read))
    return found


def _train(size: Size, prepare: Prepare, is_read: bool) -> Iterator[float]:
    torch.manual_seed(0)
    count = BATCH * STEPS[size.width]
    dataset = TensorDataset(torch.randn(count, size.width), torch.randn(count, size.width))
    model = model_of(size)
    loader, optimizer = prepare(dataset, model, torch.optim.SGD(model.parameters(), lr=0.001))
    for epoch in range(2):
        begun = time.perf_counter()
        for features, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            if is_read:
                loss.item()
            ended = time.perf_counter()
            if epoch > 0:  # the first one warms up
                yield ended - begun
            begun = ended
