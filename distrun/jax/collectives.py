"""The collectives on JAX arrays and on pytrees of them: tuples, dictionaries, parameters of flax.

They work inside and outside of `jit`, `grad`, `vmap`, `scan` and the like, on arrays of any numeric dtype and shape,
and are differentiable: see `distrun.graphs.jax.derivatives` for the gradients. Results are new arrays. None stays None.

In a jitted function all collectives run in the order of the program, which must be the same on all ranks. One that
fails raises JAX's own error when its result is needed, with the name and text of the `distrun.CollectiveError` that
would be raised outside. Names are optional: outside, unnamed collectives are matched in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from distrun.errors import UsageError
from distrun.graphs import arrays
from distrun.graphs.jax import mechanism, reduce_gradients
from distrun.jax.trees import map_arrays
from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.collectives.compressors import Compression, Compressor, wire_only
from distrun.runtime.operations.call_site import call_site
from distrun.runtime.operations.docstrings import complete_all
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "reducescatter",
]

_World = global_process_set


def reduction(
    kind: str,
    name: str | None,
    op: ReduceOp,
    compression: Compressor,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Call:
    """Return the call of an allreduce or a reducescatter; refuse operators that it does not have."""
    wire, site = wire_only(compression), call_site()
    call = Call(kind, _own(name), op, -1, prescale_factor, postscale_factor, process_set, wire, site)
    call.check("float32")
    return call


def _own(name: str | None) -> str | None:
    """Return a name that no numpy array has: numpy arrays may travel under the same name while a program runs."""
    return f"jax.{name}" if name else None


def allreduce(
    tree: Any,
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    compression: Compressor = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Any:
    """Reduce arrays over the ranks: `postscale_factor * op(prescale_factor * array)` of each. Differentiable.

    The arrays of a tree travel together.
    """
    collective = reduction("allreduce", name, op, compression, prescale_factor, postscale_factor, process_set)
    return map_arrays(partial(reduce_gradients, collective=collective), tree)


def broadcast(tree: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Copy the root's arrays to all ranks. Differentiable."""
    collective = broadcast_call(_own(name), root_rank, process_set, call_site())
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def allgather(tree: Any, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Concatenate the ranks' arrays along dimension 0, in rank order. Differentiable.

    Ranks may differ in the number of rows, but not inside `jit`, `grad` or `vmap`, where shapes must be known
    beforehand.
    """
    collective = Call("allgather", _own(name), process_set=process_set, site=call_site())
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def reducescatter(
    tree: Any,
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    compression: Compressor = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Any:
    """Reduce arrays over the ranks and keep this rank's rows of dimension 0. Differentiable."""
    collective = reduction("reducescatter", name, op, compression, prescale_factor, postscale_factor, process_set)
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def alltoall(tree: Any, splits: Any = None, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Send rows of arrays to each rank, and receive the rows that the others send. Differentiable without `splits`.

    Args:
        splits: how many rows to send to each rank, for a single array outside `jit`, `grad` and `vmap`. None: as many
            to each.

    Returns:
        The tree with the received rows, in the order of the ranks that sent them. With `splits`, a pair of the received
        array and of an int32 array of the number of rows from each rank.

    Raises:
        UsageError: the splits do not fit the rows or the ranks, or they are traced.
    """
    collective = Call("alltoall", _own(name), process_set=process_set, site=call_site())
    if splits is not None:
        return _alltoall_with(splits, jnp.asarray(tree), collective)

    def exchange(given: Sequence[Any]) -> list[Any]:
        named = [collective.named(str(place)) if place else collective for place in range(len(given))]
        return [mechanism.call([array], each)[0] for array, each in zip(given, named, strict=True)]

    return map_arrays(exchange, tree)


def _alltoall_with(splits: Any, array: Any, collective: Call) -> tuple[Any, Any]:
    if mechanism.is_traced([array, splits]):
        raise UsageError(
            "alltoall with splits cannot be part of a jitted, differentiated or batched function, where the rows to "
            "come must be known beforehand: call it outside, or leave splits out"
        )
    counts: list[int] = []

    def exchange(collective: Call, given: Sequence[Any]) -> list[Any]:
        results, received = arrays.move_rows(given, np.asarray(splits), collective)
        counts.extend(received[0].tolist())
        return results

    (received,) = mechanism.on_the_spot(exchange, [array], collective)
    return received, jnp.array(counts, jnp.int32)


complete_all(globals())
