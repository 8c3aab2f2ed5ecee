"""The arithmetic of outer steps, in place, on flat arrays of numpy or torch: its operators mean the same in both.

It processes memory piece by piece, so that the data of several operations is still in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Array = Any
"""A flat array of numpy or torch, of float32 or float64."""


def pieces(count: int, most: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `most` elements, `count` in all."""
    for start in range(0, count, most):
        yield slice(start, min(start + most, count))


def nesterov(anchor: Array, gradient: Array, velocity: Array | None, rate: float, momentum: float, piece: int) -> None:
    """Move `anchor` by the outer `gradient`, which is overwritten.

    The step is the same as in torch.optim.SGD with nesterov=True. Without a velocity, it is plain SGD.
    """
    for part in pieces(len(anchor), piece):
        step = gradient[part]
        if velocity is not None:
            within = velocity[part]
            within *= momentum
            within += step
            step += within * momentum
        step *= rate
        moved = anchor[part]
        moved -= step
