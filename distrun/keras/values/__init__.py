"""Collectives on values outside of training: numbers, arrays, and tensors of any backend in, numpy arrays out.

`tensors` has the same functions with tensors of TensorFlow as results. `logs` finds the numbers in the logs of Keras.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from distrun.keras.choice import CHOSEN
from distrun.runtime import collectives
from distrun.runtime.collectives.compressors import Compression, Compressor, compressed, wire_type
from distrun.runtime.operations.docstrings import complete_all
from distrun.runtime.operations.reduction import Average, ReduceOp, reduce_op
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]

Array = NDArray[Any]


def array_of(value: Any) -> Array:
    """Return a numpy array of the value of a number, an array, or a tensor or variable of the backend."""
    return CHOSEN.array_of(value)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a value over the ranks: `postscale_factor * op(prescale_factor * value)`.

    Args:
        value: a number, an array, or a tensor or variable of the backend.
        compression: a compressor of your own, which is given a numpy array; with those of `Compression` values travel
            as they are.

    Returns:
        A numpy array.
    """
    wire_type(compression)  # raises if it is not a compressor
    chosen = reduce_op(average, op)

    def reduce(arrays: list[Array]) -> list[Array]:
        return [
            collectives.allreduce(array, name, chosen, prescale_factor, postscale_factor, process_set)
            for array in arrays
        ]

    return compressed(compression, [array_of(value)], reduce)[0]


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenate the ranks' values along dimension 0, in which they may differ.

    Args:
        value: a number, an array, or a tensor or variable of the backend.

    Returns:
        A numpy array, the same on all ranks.
    """
    return collectives.allgather(array_of(value), name, process_set)


def broadcast(
    value: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Copy the root's value to all ranks.

    Args:
        value: a number, an array, or a tensor or variable of the backend. All ranks have the same shape and dtype.

    Returns:
        A numpy array.
    """
    return collectives.broadcast(array_of(value), root_rank, name, process_set)


def reducescatter(
    value: Any, name: str | None = None, op: ReduceOp = Average, process_set: ProcessSet = global_process_set
) -> Array:
    """Reduce a value over the ranks and keep this rank's rows of dimension 0.

    Args:
        value: a number, an array, or a tensor or variable of the backend.

    Returns:
        A numpy array.
    """
    return collectives.reducescatter(array_of(value), name, op, process_set=process_set)


complete_all(globals())
