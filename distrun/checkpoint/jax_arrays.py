"""Arrays of JAX in checkpoints, including keys of random numbers, and the nodes of pytrees."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from distrun.checkpoint import numpy_arrays
from distrun.checkpoint.numpy_arrays import Bytes, Capture
from distrun.errors import UsageError


def matches(value: Any) -> bool:
    """Whether a value is an array of JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def captured(array: Any, path: str) -> Capture:
    """Return the note, size and bytes of an array. `path` is its place, for messages.

    Raises:
        UsageError: it is inside of a jitted function, or spread over several processes.
    """
    import jax

    if isinstance(array, jax.core.Tracer):
        raise UsageError(f"{path} has no value yet inside of a jitted function: call save outside")
    if not array.is_fully_addressable:
        raise UsageError(f"{path} is spread over several processes ({array.sharding}): save it with orbax")
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    plain = numpy_arrays.captured(np.asarray(jax.random.key_data(array) if is_key else array), path)
    return Capture(plain.note | ({"key": str(jax.random.key_impl(array))} if is_key else {}), plain.size, plain.copy)


def restored(note: dict[str, Any], data: Bytes, like: Any) -> Any:
    """Return the array with these bytes, sharded as `like` is if that is an array, else on the default device."""
    import jax

    array = numpy_arrays.restored(note, data, like)
    if "key" in note:
        array = jax.random.wrap_key_data(array, impl=note["key"])
    # `array` copies, unlike `asarray`: JAX uses the memory of an aligned numpy array as its own, and reuses it later.
    return jax.device_put(array, like.sharding) if matches(like) else jax.numpy.array(array)


def children(value: Any) -> list[Any] | None:
    """Return the children of a node of a pytree, or None if `value` is not a node to JAX."""
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    parts, structure = jax.tree_util.tree_flatten(value, is_leaf=lambda part: part is not value)
    return None if jax.tree_util.treedef_is_leaf(structure) else list(parts)


def with_children(value: Any, parts: list[Any]) -> Any:
    """Return a node like `value`, with `parts` as its children."""
    import jax

    return jax.tree_util.tree_structure(value, is_leaf=lambda part: part is not value).unflatten(parts)
