"""The reduction of a list of JAX gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrun.graphs import gradients as any_framework
from distrun.graphs.jax.mechanism import call, is_traced
from distrun.runtime.collectives.call import Call
from distrun.tensor_fusion.buckets import GradientInfo


class _Toolkit:
    def item(self, array: Any) -> GradientInfo:
        return GradientInfo(array.size * array.dtype.itemsize, array.dtype)

    def join(self, arrays: Sequence[Any]) -> Any:
        return jnp.concatenate([array.reshape(-1) for array in arrays])

    def cut(self, joined: Any, like: Sequence[Any]) -> Sequence[Any]:
        stops = np.cumsum([math.prod(array.shape) for array in like])
        return [
            piece.reshape(array.shape)
            for piece, array in zip(jnp.split(joined, stops[:-1].tolist()), like, strict=True)
        ]


def reduce_gradients(gradients: Sequence[Any], collective: Call) -> list[Any]:
    """Return the allreduced `gradients`, inside or outside of a program. None and integers' float0 are unchanged."""
    places = [place for place, gradient in enumerate(gradients) if _is_array(gradient)]
    arrays = [gradients[place] for place in places]
    if is_traced(arrays):
        arrays = any_framework.reduce_gradients(arrays, collective, _Toolkit(), call)
    elif arrays:
        arrays = call(arrays, collective)  # one call takes all arrays, so joining them would gain nothing
    reduced = list(gradients)
    for place, array in zip(places, arrays, strict=True):
        reduced[place] = array
    return reduced


def _is_array(gradient: Any) -> bool:
    return gradient is not None and gradient.dtype != jax.dtypes.float0
