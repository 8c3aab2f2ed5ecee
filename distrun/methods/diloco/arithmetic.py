"""The arithmetic of outer steps, in place, on flat arrays of numpy or torch: all that is done means the same in both.

It goes through memory piece by piece, so that what several operations need is still in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Array = Any
"""A flat array of numpy or torch, of float32 or float64."""


def pieces(count: int, most: int) -> Iterator[slice]:
    """Yield slices of at most so many elements that make up `count`."""
    for start in range(0, count, most):
        yield slice(start, min(start + most, count))


def nesterov(anchor: Array, gradient: Array, velocity: Array | None, rate: float, momentum: float, piece: int) -> None:
    """Move the anchor by an outer gradient, which is overwritten.

    The step is that of torch.optim.SGD with nesterov=True; without a velocity it is plain.
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
