"""Collectives through `jax.experimental.io_callback`: slower than `primitive`, but by JAX's public interface only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from distrun.graphs.jax.arrays import perform_evenly
from distrun.graphs.jax.derivatives import backward, check_differentiable
from distrun.graphs.jax.shapes import result_shape
from distrun.runtime.collectives.call import Call

Signature = tuple[tuple[tuple[int, ...], Any], ...]
"""The shape and dtype of each array."""


def call(arrays: Sequence[Any], collective: Call) -> list[Any]:
    """Return the results of a collective on traced arrays."""
    return list(_call(collective, tuple([(array.shape, array.dtype) for array in arrays]), *arrays))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _call(collective: Call, signature: Signature, *arrays: Any) -> list[Any]:
    results = [jax.ShapeDtypeStruct(result_shape(collective, shape), dtype) for shape, dtype in signature]

    def perform(*given: Any) -> list[Any]:
        return perform_evenly(collective, [np.asarray(array) for array in given])

    return list(io_callback(perform, results, *arrays, ordered=True))


def _forward(collective: Call, signature: Signature, *arrays: Any) -> tuple[list[Any], None]:
    check_differentiable(collective)
    return _call(collective, signature, *arrays), None


def _backward(collective: Call, signature: Signature, _: None, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cotangents of the arrays. For integers and booleans, these are float0 zeros."""
    places = [place for place, (_, dtype) in enumerate(signature) if jnp.issubdtype(dtype, jnp.inexact)]
    shapes = [signature[place][0] for place in places]
    moved = backward(collective, shapes, [cotangents[place] for place in places], call)
    results: list[Any] = [np.zeros(shape, jax.dtypes.float0) for shape, _ in signature]
    for place, cotangent in zip(places, moved, strict=True):
        results[place] = cotangent
    return tuple(results)


_call.defvjp(_forward, _backward)
