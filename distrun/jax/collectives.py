"""The collectives on arrays of JAX and on pytrees of them: tuples, dictionaries, parameters of flax.

They work inside and outside of `jit`, `grad`, `vmap`, `scan` and the like, on arrays of any numeric dtype and shape,
and are differentiable: see `distrun.graphs.jax.derivatives` for what flows back. Results are new arrays; None stays
None.

In a jitted function all collectives run in the order of the program, which must be the same on all ranks; one that
fails raises JAX's own error, when its result is needed, with the name and text of the `distrun.CollectiveError` that is
raised outside. Names are needed nowhere: outside, collectives without one are matched in the order of the calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from distrun.errors import UsageError
from distrun.graphs import arrays
from distrun.graphs.compression import Compression, Compressor, wire_type
from distrun.graphs.jax import mechanism, reduce_gradients
from distrun.jax.site import call_site
from distrun.jax.trees import map_arrays
from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_set import ProcessSet, global_process_set

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
    """An allreduce or a reducescatter.

    Raises:
        UsageError: `op` or `compression` is none.
    """
    call = Call(
        *(kind, _own(name), op, -1, prescale_factor, postscale_factor, process_set, wire_type(compression), call_site())
    )
    call.check("float32")
    return call


def _own(name: str | None) -> str | None:
    """A name that only arrays of JAX have: numpy arrays may travel while a program runs."""
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
    """`postscale_factor * op(prescale_factor * array)` over the ranks, of each array; the same bits on all of them.

    `op`: Average, Sum, Min, Max or Product. float16 and bfloat16 are summed in float32; an average of integers is
    rounded towards zero. The arrays of a tree travel together."""
    collective = reduction("allreduce", name, op, compression, prescale_factor, postscale_factor, process_set)
    return map_arrays(partial(reduce_gradients, collective=collective), tree)


def broadcast(tree: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """The root's arrays; the others' must have the same shapes and dtypes."""
    collective = broadcast_call(_own(name), root_rank, process_set, call_site())
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def allgather(tree: Any, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """The ranks' arrays, one after the other along dimension 0.

    Ranks may differ in the number of rows, but not inside of `jit`, `grad` or `vmap`, where shapes must be known
    beforehand."""
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
    """Reduce over the ranks and keep this rank's rows: an even share of dimension 0, the earlier ranks one more if need
    be.

    `op`: Average or Sum.
    """
    collective = reduction("reducescatter", name, op, compression, prescale_factor, postscale_factor, process_set)
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def alltoall(tree: Any, splits: Any = None, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Send `splits[i]` rows of each array, in order, to rank i, and receive what the others send here, in rank order.

    Without `splits` every rank gets the same number of rows. With them, which is possible outside of `jit`, `grad` and
    `vmap` only and with a single array, the result is a pair of the received array and the int32 array of rows received
    from each rank."""
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
