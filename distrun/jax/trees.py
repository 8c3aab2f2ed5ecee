"""Pytrees as lists of arrays for collectives, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrun.errors import UsageError
from distrun.runtime.collectives.consistency import describe


def map_arrays(function: Callable[[Sequence[Any]], Sequence[Any]], tree: Any) -> Any:
    """Return `tree` with its leaves replaced by the results of `function`, which takes all leaves at once, as arrays.

    The float0 leaves that `jax.grad` makes for integers have no data, and stay as they are. Keys of random numbers are
    refused.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if getattr(leaf, "dtype", None) != jax.dtypes.float0]
    arrays = [jnp.asarray(leaves[place]) for place in places]
    for array in arrays:
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            raise UsageError(f"an array of {array.dtype} cannot travel: take its numbers with jax.random.key_data(...)")
    for place, result in zip(places, function(arrays) if arrays else (), strict=True):
        leaves[place] = result
    return jax.tree_util.tree_unflatten(structure, leaves)


def entries(tree: Any) -> list[str]:
    """Return a text for each leaf of a tree: its path, shape and dtype, which ranks compare."""
    return [
        describe(
            jax.tree_util.keystr(path) or "the array",
            np.shape(leaf),
            getattr(leaf, "dtype", None) or np.result_type(leaf),
        )
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
