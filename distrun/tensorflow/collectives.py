"""The collectives on tensors of TensorFlow, with Horovod's names, arguments and order of arguments.

What the texts of `distrun.runtime.collectives` say of numpy arrays holds here: names, order, errors. They work eagerly,
in tf.function and in graphs of TensorFlow 1, on tensors of any numeric dtype and shape, and are differentiable: see
`distrun.tensorflow.autograd` for what flows back. In a graph an operation without a name gets one that counts within
the graph, so a rank may trace a function anew by itself. There failures are a tf.errors.OpError that holds the text of
the `distrun.CollectiveError` that is raised eagerly.

In a graph of TensorFlow 1 nothing but tf.control_dependencies orders operations, and each holds a thread of the session
while it waits: put many that are independent into a group (`grouped_allreduce`), or order them.

`device_dense`, `device_sparse` and `ignore_name_scope` are accepted for Horovod's sake and change nothing.

Differences from Horovod: bfloat16, bool, complex and unsigned tensors travel too, and 0-dimensional ones; functions
compiled by XLA (`jit_compile=True`) are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distrun.graphs.compression import Compression, Compressor, wire_type
from distrun.graphs.tensorflow import call, gather_slices
from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.operations.reduction import Average, ReduceOp, reduce_op
from distrun.runtime.process_set import ProcessSet, global_process_set
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


def _reduction(
    kind: str,
    name: str | None,
    op: ReduceOp,
    compression: Compressor,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> Call:
    return Call(
        kind,
        name or None,
        op,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        process_set=process_set,
        wire=wire_type(compression),
    )


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
    """`postscale_factor * op(prescale_factor * tensor)` over the ranks; the same bits on all of them.

    `op`: Average (if None), Sum, Min, Max or Product. float16 and bfloat16 are summed in float32; an average of
    integers is rounded towards zero. Of tf.IndexedSlices (Average or Sum only) everybody's slices are put together."""
    return grouped_allreduce(
        [tensor],
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        name=name,
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
    """`allreduce` of several tensors, tf.IndexedSlices among them, as one operation per dtype."""
    collective = _reduction(
        "allreduce", name, reduce_op(average, op), compression, prescale_factor, postscale_factor, process_set
    )
    results = list(tensors)
    sparse = [place for place, tensor in enumerate(results) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place in range(len(results)) if place not in sparse]
    if dense or not sparse:
        reduced: Sequence[Any] = autograd.allreduce([results[place] for place in dense], collective)
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
    """The ranks' tensors, one after the other along dimension 0, in which they may differ."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = _World
) -> list[tf.Tensor]:
    """`allgather` of several tensors as one operation per dtype."""
    return autograd.allgather(tensors, Call("allgather", name or None, process_set=process_set))


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _World,
) -> tf.Tensor:
    """The root's tensor; the others' must have the same shape and dtype."""
    return autograd.broadcast([tensor], broadcast_call(name or None, root_rank, process_set))[0]


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> list[Any]:
    """Overwrite variables with the root's, in one operation per dtype; returns them."""
    variables = list(variables)
    if variables:
        assign_all(variables, call(variables, broadcast_call(name or None, root_rank, process_set)))
    return variables


def assign_all(variables: Sequence[Any], values: Sequence[tf.Tensor]) -> Any:
    """Assign to variables of TensorFlow or Keras; in a graph, the operation that does it."""
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
    """Send `splits[i]` rows of `tensor`, in order, to rank i, and receive what the others send here, in rank order.

    Without `splits` every rank gets the same number of rows, and the received tensor is returned; with them (a list or
    an integer tensor), a pair of it and of the int32 tensor of rows received from each rank."""
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
    """Reduce over the ranks and keep this rank's rows: an even share of dimension 0, the earlier ranks one more if need
    be.

    `op`: Average or Sum.
    """
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
    """`reducescatter` of several tensors as one operation per dtype."""
    collective = _reduction("reducescatter", name, op, compression, prescale_factor, postscale_factor, process_set)
    return autograd.reducescatter(tensors, collective)
