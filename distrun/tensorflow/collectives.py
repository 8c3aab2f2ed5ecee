"""The collectives on tensors of TensorFlow, with Horovod's names, arguments and order of arguments.

The rules of `distrun.runtime.collectives` for names, order and errors apply. The functions work eagerly, in tf.function
and in graphs of TensorFlow 1, on tensors of any numeric dtype and shape, and are differentiable: see
`distrun.tensorflow.autograd` for the gradients. In a graph an unnamed operation gets a name with a number that counts
within the graph, so one rank may trace a function again without the others.

In a graph a failure is a tf.errors.OpError with the text of the `distrun.CollectiveError` that would be raised eagerly:
FailedPreconditionError if the ranks disagree, InvalidArgumentError for splits that do not fit, UnknownError otherwise.
Eagerly, an error of the first two kinds is an instance of both distrun's and TensorFlow's class.

In a graph of TensorFlow 1 only tf.control_dependencies orders operations. They are executed in any order, and occupy no
thread of the session while they wait. In a tf.function they run in the order of tracing.

`device_dense`, `device_sparse` and `ignore_name_scope` are accepted for Horovod's sake and have no effect.

Differences from Horovod: bfloat16, bool, complex and unsigned tensors travel too, as do 0-dimensional ones. Functions
compiled by XLA (`jit_compile=True`) are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distrun.graphs.tensorflow import call, gather_slices
from distrun.runtime.collectives.call import Call, broadcast_call, reduction_call
from distrun.runtime.collectives.compressors import Compression, Compressor, compressed, wire_type
from distrun.runtime.operations.docstrings import complete_all
from distrun.runtime.operations.reduction import Average, ReduceOp, reduce_op
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.tensorflow import autograd

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]

_World = global_process_set


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = _World,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over the ranks: `postscale_factor * op(prescale_factor * tensor)`. Differentiable.

    Args:
        tensor: a tensor, variable or array, of one shape and dtype on all ranks, or tf.IndexedSlices, whose `op` is
            `Average` or `Sum`.

    Returns:
        The reduced tensor, or for tf.IndexedSlices the slices of all ranks put together.
    """
    return grouped_allreduce(
        [tensor], average, "", "", compression, op, prescale_factor, postscale_factor, process_set, name=name
    )[0]


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors, tf.IndexedSlices among them, as one operation per dtype. Differentiable."""
    op, prescale, postscale = reduce_op(average, op), float(prescale_factor), float(postscale_factor)
    collective = reduction_call("allreduce", name or None, op, prescale, postscale, process_set)
    collective = collective._replace(wire=wire_type(compression))
    results = list(tensors)
    sparse = [place for place, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place in range(len(results)) if place not in sparse]
    if dense or not sparse:
        given = [tf.convert_to_tensor(results[place]) for place in dense]
        reduced = compressed(compression, given, lambda tensors: autograd.allreduce(tensors, collective))
        for place, tensor in zip(dense, reduced, strict=True):
            results[place] = tensor
    if sparse:
        for place, slices in zip(
            sparse, gather_slices([results[place] for place in sparse], collective.named("sparse")), strict=True
        ):
            results[place] = slices
    return results


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = _World
) -> tf.Tensor:
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = _World
) -> list[tf.Tensor]:
    """Gather several tensors as one operation per dtype, each as `allgather` does. Differentiable."""
    return autograd.allgather(tensors, Call("allgather", name or None, process_set=process_set))


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _World,
) -> tf.Tensor:
    """Copy the root's tensor to all ranks. Differentiable."""
    return autograd.broadcast([tensor], broadcast_call(name or None, root_rank, process_set))[0]


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> list[tf.Tensor]:
    """Overwrite variables with the root's, in one operation per dtype.

    In a graph of TensorFlow 1, evaluating the returned tensors does it.

    Args:
        variables: of TensorFlow or Keras, the same list of dtypes and shapes on all ranks.

    Returns:
        Tensors with the new values, in the order of `variables`.
    """
    variables = list(variables)
    if not variables:
        return []
    values = call(variables, broadcast_call(name or None, root_rank, process_set))
    done = assign_all(variables, values)
    with tf.control_dependencies([] if done is None else [done]):
        return [tf.identity(value) for value in values]


def assign_all(variables: Sequence[Any], values: Sequence[tf.Tensor]) -> Any:
    """Assign values to variables of TensorFlow or Keras. Returns None or, in a graph, the operation that assigns."""
    assigned = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    return None if tf.executing_eagerly() else tf.group(*[each for each in assigned if each is not None])


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _World,
) -> Any:
    """Send rows of a tensor to each rank, and receive the rows that the others send. Differentiable."""
    collective = Call("alltoall", name or None, process_set=process_set)
    received, rows = autograd.alltoall(tensor, splits, collective)
    return received if splits is None else (received, rows)


@tf.autograph.experimental.do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce a tensor over the ranks and keep this rank's rows of dimension 0. Differentiable."""
    return grouped_reducescatter(
        [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name
    )[0]


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduce several tensors as one operation per dtype, and keep this rank's rows of each. Differentiable."""
    prescale, postscale = float(prescale_factor), float(postscale_factor)
    collective = reduction_call("reducescatter", name or None, op, prescale, postscale, process_set)
    collective = collective._replace(wire=wire_type(compression))
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return compressed(compression, given, lambda tensors: autograd.reducescatter(tensors, collective))


complete_all(globals())
