"""Sums over the ranks inside a training step, on any backend, through which gradients flow."""

from __future__ import annotations

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
