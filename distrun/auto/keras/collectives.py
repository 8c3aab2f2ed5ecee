"""Sums over the ranks inside a training step, on any backend, and a mark for code that runs on one rank only.

Gradients flow through the sums. Where a rank is alone, no collective may be called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from distrun.keras.choice import CHOSEN
from distrun.runtime.operations.reduction import Sum


def total(tensor: Any, name: str) -> Any:
    """Return the sum of a tensor over the ranks. Its gradient is the sum of the ranks' gradients."""
    if CHOSEN.BACKEND == "tensorflow":
        from distrun.tensorflow import allreduce as reduce_tensorflow

        return reduce_tensorflow(tensor, op=Sum, name=name)
    if CHOSEN.BACKEND == "jax":
        from distrun.jax import allreduce as reduce_jax

        return reduce_jax(tensor, Sum, name=name)
    from distrun.torch import allreduce as reduce_torch

    return reduce_torch(tensor, name=name, op=Sum)


_alone = 0


def is_alone() -> bool:
    """Whether code is running that only rank 0 runs, such as a callback that writes."""
    return _alone > 0


@contextlib.contextmanager
def on_one_rank() -> Iterator[None]:
    """A context for code that the other ranks do not run."""
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1
