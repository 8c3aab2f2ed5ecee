"""Elastic training with JAX.

    @elastic.run
    def train(state):
        while state.step < steps:
            state.params, state.moments, loss = step(state.params, state.moments, next(batches))  # jitted
            state.step += 1
            state.advance()

    train(elastic.JaxState(params=params, moments=moments, step=0))

A jitted function that only reduces gradients is not compiled again for other ranks. If a function depends on the
world, such as on the shape of an allgather's result, all programs are compiled again. Constants that the script itself
puts into a function, such as `1 / distrun.size()`, stay in it: pass them as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from distrun.elastic import (
    HostsUpdatedInterrupt as HostsUpdatedInterrupt,
    ObjectState as ObjectState,
    State as State,
    run as run,
)
from distrun.elastic.graphs import Ahead, GraphState, HostArrays
from distrun.elastic.part import Part
from distrun.graphs.jax.lookahead import Lookahead
from distrun.jax.state import as_host_array, like
from distrun.jax.trees import entries

__all__ = ["HostsUpdatedInterrupt", "JaxState", "ObjectState", "State", "run"]


class JaxState(GraphState):
    """A state of pytrees and objects: `JaxState(params=params, opt_state=opt_state, epoch=0)`.

    An attribute that contains arrays when the state is made is sent as arrays, and must have the same structure on all
    ranks. Others are pickled. The arrays of the last two step boundaries are kept, because JAX computes ahead: do not
    donate them (`donate_argnums`), or commit now and then.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Make a state whose attributes are the arguments."""
        super().__init__(**kwargs)
        self.lookahead = Lookahead()

    def part_of(self, name: str, value: Any) -> Part | None:
        """Return the part for a pytree with arrays, or None for an object to pickle."""
        leaves = jax.tree_util.tree_leaves(value)
        has_arrays = any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves)
        return Tree(self, name) if has_arrays else super().part_of(name, value)


class Tree(HostArrays, Ahead):
    """An attribute of a state that is a pytree of arrays."""

    def __init__(self, state: JaxState, name: str) -> None:
        super().__init__()
        self._state = state
        self._name = name

    def arrays(self) -> Any:
        """Return the tree."""
        return getattr(self._state, self._name)

    def go_back(self, arrays: Any) -> None:
        """Set the attribute to this tree."""
        setattr(self._state, self._name, arrays)

    def entries(self) -> list[str]:
        return entries(self.arrays())

    def values(self) -> list[Any]:
        return [as_host_array(leaf) for leaf in jax.tree_util.tree_leaves(self.arrays())]

    def assign(self, arrays: Sequence[Any]) -> None:
        leaves, structure = jax.tree_util.tree_flatten(self.arrays())
        taken = [like(array, leaf) for array, leaf in zip(arrays, leaves, strict=True)]
        self.go_back(jax.tree_util.tree_unflatten(structure, taken))
