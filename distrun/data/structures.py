"""Samples, and arrays of samples, in nested tuples and dicts: what Keras and JAX call trees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError


def transform(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply `function` to the leaves at the same place of each structure. Lists are leaves."""
    if isinstance(first, dict):
        return {key: transform(function, value, *(other[key] for other in others)) for key, value in first.items()}
    if isinstance(first, tuple):
        parts = [transform(function, *parts) for parts in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(first, *others)


def rows(arrays: Any) -> int:
    """Return the number of samples in a structure of arrays, which must have one length."""
    lengths: list[int] = []
    transform(lambda leaf: lengths.append(_length(leaf)), arrays)
    if len(set(lengths)) != 1:
        told = ", ".join(map(str, lengths)) or "none at all"
        raise UsageError(f"arrays that belong together have different lengths ({told}): give as many samples in each")
    return lengths[0]


def take(arrays: Any, indices: NDArray[np.int64]) -> Any:
    """Return a copy of some rows of a structure of arrays."""
    return transform(lambda leaf: _indexable(leaf)[indices], arrays)


def stack(samples: Sequence[Any]) -> Any:
    """Return a batch of like samples: the structure of one, with arrays that have a row for each sample."""
    try:
        return transform(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *samples)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"samples cannot be put together to a batch ({error}): give samples of one shape, or batch what shard "
            "returns without batch_size"
        ) from error


def _length(leaf: Any) -> int:
    shape = getattr(leaf, "shape", None)
    if not shape:
        what = type(leaf).__name__ if shape is None else "array without rows"
        raise UsageError(f"a tuple or dict of arrays has a {what} in it: make it an array, or give a list of samples")
    return int(shape[0])


def _indexable(leaf: Any) -> Any:
    tensorflow = sys.modules.get("tensorflow")
    return leaf.numpy() if tensorflow is not None and isinstance(leaf, tensorflow.Tensor) else leaf
