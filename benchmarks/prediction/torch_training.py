"""A training with PyTorch that sleeps where others compute: 150 ms forward, 350 ms on the way back through 8 layers.

    distrun ... python -m benchmarks.prediction.torch_training STEPS MB_PER_LAYER

It has a loader, an optimizer and gradients as any script; nothing in it measures.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import distrun.torch as dt

LAYERS, FORWARD, BACKWARD = 8, 0.150, 0.350


class Slow(torch.autograd.Function):
    """A layer that takes its time, and adds a number of its weights to what passes."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sleep, and add."""
        context.save_for_backward(weights)
        time.sleep(FORWARD / LAYERS)
        return values + weights[0]

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sleep, and give the gradients of all weights."""
        time.sleep(BACKWARD / LAYERS)
        return gradients[0], torch.full_like(context.saved_tensors[0], 1e-6)


def main() -> None:
    """Train."""
    steps, megabytes = int(sys.argv[1]), float(sys.argv[2])
    dt.init()
    torch.set_num_threads(1)
    layers = [torch.nn.Parameter(torch.zeros(int(megabytes * 1e6) // 4)) for _ in range(LAYERS)]
    named = [(f"layer.{place}", layer) for place, layer in enumerate(layers)]
    optimizer = dt.DistributedOptimizer(torch.optim.SGD(layers, lr=0.1), named)
    for (batch,) in DataLoader(TensorDataset(torch.ones(8 * steps, 1)), batch_size=8):
        optimizer.zero_grad()
        for layer in layers:
            batch = Slow.apply(batch, layer)
        batch.sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
