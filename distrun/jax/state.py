"""Broadcasts of parameters, optimizer states and other pytrees."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from distrun.errors import UsageError
from distrun.graphs.jax import arrays, mechanism
from distrun.jax.trees import entries
from distrun.runtime.collectives import consistency
from distrun.runtime.collectives.call import broadcast_call
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

_NUMBERS = (bool, int, float, complex)


def broadcast_parameters(tree: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's tree: `params, state = broadcast_parameters((params, state), root_rank=0)`.

    Args:
        tree: a pytree of arrays of JAX, which stay on their devices, arrays of numpy, numbers of Python, and keys of
            random numbers. It has the same structure, shapes and dtypes on all ranks.
        root_rank: the rank, in the world, whose tree it is.
        process_set: the ranks that take part.

    Raises:
        MismatchError: the ranks' trees differ in structure, shape or dtype. The text names the first leaf that does.
        UsageError: a leaf is something else, or the call is inside of a jitted function.
    """
    collective = broadcast_call("jax.broadcast_parameters.leaves", root_rank, process_set)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    for path, leaf in paths:
        _check(jax.tree_util.keystr(path), leaf)
    if process_set.size() == 1:
        return tree
    consistency.compare(
        entries(tree), "the parameters to broadcast", "jax.broadcast_parameters", process_set=process_set
    )
    if not paths:
        return tree
    leaves = [leaf for _, leaf in paths]
    sent = arrays.perform(collective, [as_host_array(leaf) for leaf in leaves])
    received = [like(array, leaf) for array, leaf in zip(sent, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, received)


def _check(path: str, leaf: Any) -> None:
    if mechanism.is_traced([leaf]):
        raise UsageError(
            "broadcast_parameters compares the ranks' trees, which a jitted function cannot: call it outside"
        )
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, *_NUMBERS)):
        raise UsageError(
            f"the leaf {path} is a {type(leaf).__name__}, which is not an array: use broadcast_object for it, or leave "
            "it out"
        )


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_host_array(leaf: Any) -> Any:
    """Return a leaf as an array in host memory. The array of a key has the numbers in the key."""
    return mechanism.as_numpy(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def like(array: Any, leaf: Any) -> Any:
    """Return `array`, which was received, as a value of the same kind as `leaf`, on the same devices."""
    if _is_key(leaf):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return mechanism.placed(array, leaf)
    return type(leaf)(array.item()) if isinstance(leaf, _NUMBERS) else array
