"""The collectives on arrays of JAX and on pytrees of them: tuples, dictionaries, parameters of flax.

They work inside and outside of `jit`, `grad`, `vmap`, `scan` and the like, on arrays of any numeric dtype and shape,
and are differentiable: see `distrun.graphs.jax.derivatives` for what flows back. Results are new arrays; None stays
None.

In a jitted function all collectives run in the order of the program, which must be the same on all ranks; one that
fails raises JAX's own error, when its result is needed, with the name and text of the `distrun.CollectiveError` that is
raised outside. Names are needed nowhere: outside, collectives without one are matched in the order of the calls.
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
    """An allreduce or a reducescatter.

    Raises:
        UsageError: `op` or `compression` is none.
    """
    call = Call(
        *(
            kind,
            _own(name),
            op,
            -1,
            prescale_factor,
            postscale_factor,
            process_set,
            wire_only(compression),
            call_site(),
        )
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
    """Reduce arrays over the ranks: `postscale_factor * op(prescale_factor * array)` of each. Differentiable.

    All ranks get the same bits. float16 and bfloat16 are summed in float32; an average of integers is rounded towards
    zero. The arrays of a tree travel together.

    Args:
        tree: an array, or a pytree of arrays, of one structure on all ranks, with the same shapes and dtypes. None
            stays None.
        op: `Average`, `Sum`, `Min`, `Max` or `Product`.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        compression: the form in which tensors travel between hosts; see `Compression`.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        The tree with new arrays.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    collective = reduction("allreduce", name, op, compression, prescale_factor, postscale_factor, process_set)
    return map_arrays(partial(reduce_gradients, collective=collective), tree)


def broadcast(tree: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Copy the root's arrays to all ranks. Differentiable.

    Args:
        tree: an array, or a pytree of arrays, of one structure on all ranks, with the same shapes and dtypes. None
            stays None.
        root_rank: the rank, in the world, whose arrays they are.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The tree with the root's arrays.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    collective = broadcast_call(_own(name), root_rank, process_set, call_site())
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def allgather(tree: Any, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Concatenate the ranks' arrays along dimension 0, in rank order. Differentiable.

    Ranks may differ in the number of rows, but not inside `jit`, `grad` or `vmap`, where shapes must be known
    beforehand.

    Args:
        tree: an array, or a pytree of arrays, of one structure on all ranks. None stays None.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The tree with the gathered arrays.

    Raises:
        UsageError: a 0-dimensional array.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
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
    """Reduce arrays over the ranks and keep this rank's rows of dimension 0. Differentiable.

    Each rank keeps an even share, the earlier ranks one row more where it does not come out even.

    Args:
        tree: an array, or a pytree of arrays, of one structure on all ranks, with the same shapes and dtypes. None
            stays None.
        op: `Average` or `Sum`.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        compression: the form in which tensors travel between hosts; see `Compression`.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        The tree with this rank's rows.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    collective = reduction("reducescatter", name, op, compression, prescale_factor, postscale_factor, process_set)
    return map_arrays(partial(mechanism.call, collective=collective), tree)


def alltoall(tree: Any, splits: Any = None, *, name: str | None = None, process_set: ProcessSet = _World) -> Any:
    """Send rows of arrays to each rank, and receive those that the others send here. Differentiable without `splits`.

    Args:
        tree: an array, or a pytree of arrays, of one structure on all ranks, with the same shapes and dtypes. None
            stays None.
        splits: the rows to send to each rank, for a single array outside `jit`, `grad` and `vmap`. None: as many to
            each rank.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The tree with the received rows, in the order of the ranks that sent them; with `splits`, a pair of the received
        array and of the int32 array of the rows received from each rank.

    Raises:
        UsageError: the splits do not fit the rows or the ranks, or they are traced.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
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
