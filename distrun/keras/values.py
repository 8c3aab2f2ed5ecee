"""Collectives on values outside of training: numbers, arrays, and tensors of any backend in, numpy arrays out."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.graphs.compression import Compression, Compressor, wire_type
from distrun.runtime import collectives
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum
from distrun.runtime.process_set import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "reducescatter",
]

Array = NDArray[Any]


def array_of(value: Any) -> Array:
    """A numpy array of what a number, an array, a tensor or a variable of the backend holds."""
    if isinstance(value, keras.Variable):
        value = value.value
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


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
    """`postscale_factor * op(prescale_factor * value)` over the ranks; Average unless told otherwise.

    An average of integers is rounded towards zero. `compression` is accepted for Horovod's sake: values travel as they
    are.

    Raises:
        UsageError: `average` and `op` are both given.
    """
    wire_type(compression)
    if average is not None:
        if op is not None:
            raise UsageError(f"average={average} and op={op} are both given: drop average, the older of the two")
        op = Average if average else Sum
    return collectives.allreduce(
        array_of(value), name, Average if op is None else op, prescale_factor, postscale_factor, process_set
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The ranks' values, one after the other along dimension 0, in which they may differ."""
    return collectives.allgather(array_of(value), name, process_set)


def broadcast(
    value: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The root's value; the others' must have the same shape and dtype."""
    return collectives.broadcast(array_of(value), root_rank, name, process_set)


def reducescatter(
    value: Any, name: str | None = None, op: ReduceOp = Average, process_set: ProcessSet = global_process_set
) -> Array:
    """Reduce over the ranks and keep this rank's rows of dimension 0."""
    return collectives.reducescatter(array_of(value), name, op, process_set=process_set)
