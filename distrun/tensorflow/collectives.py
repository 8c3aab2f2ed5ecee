"""The collectives on tensors of TensorFlow, with Horovod's names, arguments and order of arguments.

What the texts of `distrun.runtime.collectives` say of numpy arrays holds here: names, order, errors. They work eagerly,
in tf.function and in graphs of TensorFlow 1, on tensors of any numeric dtype and shape, and are differentiable: see
`distrun.tensorflow.autograd` for what flows back. In a graph an operation without a name gets one that counts within
the graph, so a rank may trace a function again by itself. There failures are a tf.errors.OpError that holds the text of
the `distrun.CollectiveError` that is raised eagerly: FailedPreconditionError where the ranks disagree,
InvalidArgumentError for splits that do not fit, UnknownError otherwise. Eagerly the first two are both at once, an
error of distrun's and TensorFlow's.

In a graph of TensorFlow 1 nothing but tf.control_dependencies orders operations: they are executed in any order, and
hold none of the session's threads while they wait. In a tf.function they run in the order in which they were traced.

`device_dense`, `device_sparse` and `ignore_name_scope` are accepted for Horovod's sake and change nothing.

Differences from Horovod: bfloat16, bool, complex and unsigned tensors travel too, and 0-dimensional ones; functions
compiled by XLA (`jit_compile=True`) are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distrun.graphs.tensorflow import call, gather_slices
from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.collectives.compressors import Compression, Compressor, compressed, wire_type
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
    """Reduce a tensor over the ranks: `postscale_factor * op(prescale_factor * tensor)`. Differentiable.

    All ranks get the same bits. float16 and bfloat16 are summed in float32; an average of integers is rounded towards
    zero.

    Args:
        tensor: a tensor, variable or array of one shape and dtype on all ranks; or tf.IndexedSlices.
        average: Horovod's older way of choosing between `Average` and `Sum`; not together with `op`.
        compression: the form in which tensors travel between hosts, or a compressor of your own; see `Compression`.
        op: `Average` (if None), `Sum`, `Min`, `Max` or `Product`. Of tf.IndexedSlices `Average` or `Sum`.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        process_set: the ranks that take part.
        device_dense, device_sparse, ignore_name_scope: accepted for Horovod's sake.

    Returns:
        The reduced tensor; of tf.IndexedSlices, the slices of all ranks put together.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
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
    """Reduce several tensors, tf.IndexedSlices among them, as one operation per dtype; see `allreduce`.

    Args:
        tensors: the same list of dtypes and shapes on all ranks; at least one.
        average: Horovod's older way of choosing between `Average` and `Sum`; not together with `op`.
        compression: the form in which tensors travel between hosts, or a compressor of your own; see `Compression`.
        op: `Average` (if None), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        device_dense, device_sparse, ignore_name_scope: accepted for Horovod's sake.

    Returns:
        The reduced tensors, in the order of `tensors`.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    collective = _reduction(
        "allreduce", name, reduce_op(average, op), compression, prescale_factor, postscale_factor, process_set
    )
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
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable.

    Args:
        tensor: of one dtype on all ranks, and of one shape but for the extent of dimension 0.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        ignore_name_scope: accepted for Horovod's sake.
        process_set: the ranks that take part.

    Returns:
        A tensor, the same on all ranks.

    Raises:
        UsageError: a 0-dimensional tensor.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return grouped_allgather([tensor], name, process_set=process_set)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = _World
) -> list[tf.Tensor]:
    """Gather several tensors as one operation per dtype, each for itself as `allgather` does.

    Args:
        tensors: at least one.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        ignore_name_scope: accepted for Horovod's sake.
        process_set: the ranks that take part.

    Returns:
        The gathered tensors, in the order of `tensors`.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return autograd.allgather(tensors, Call("allgather", name or None, process_set=process_set))


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _World,
) -> tf.Tensor:
    """Copy the root's tensor to all ranks. Differentiable.

    Args:
        tensor: on the root what is copied; elsewhere one of the same shape and dtype.
        root_rank: the rank, in the world, whose tensor it is.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        ignore_name_scope: accepted for Horovod's sake.
        process_set: the ranks that take part.

    Returns:
        The root's tensor.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return autograd.broadcast([tensor], broadcast_call(name or None, root_rank, process_set))[0]


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> list[tf.Tensor]:
    """Overwrite variables with the root's, in one operation per dtype.

    In a graph of TensorFlow 1 that is done when the tensors are computed that this returns.

    Args:
        variables: of TensorFlow or Keras, the same list of dtypes and shapes on all ranks.
        root_rank: the rank, in the world, whose variables they are.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        process_set: the ranks that take part.

    Returns:
        Tensors with the new values, in the order of `variables`.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    variables = list(variables)
    if not variables:
        return []
    values = call(variables, broadcast_call(name or None, root_rank, process_set))
    done = assign_all(variables, values)
    with tf.control_dependencies([] if done is None else [done]):
        return [tf.identity(value) for value in values]


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
    """Send rows of a tensor to each rank, and receive those that the others send here. Differentiable.

    Args:
        tensor: its rows are sent in order, the first ones to rank 0.
        splits: the rows to send to each rank, a list or an integer tensor. None: as many to each rank.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        ignore_name_scope: accepted for Horovod's sake.
        process_set: the ranks that take part.

    Returns:
        The received rows, in the order of the ranks that sent them; with `splits`, a pair of them and of the int32
        tensor of the rows received from each rank.

    Raises:
        UsageError: the splits do not fit the rows or the ranks, or a 0-dimensional tensor.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
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
    """Reduce a tensor over the ranks and keep this rank's rows of dimension 0. Differentiable.

    Each rank keeps an even share, the earlier ranks one row more where it does not come out even.

    Args:
        tensor: of one shape and dtype on all ranks, with at least one dimension.
        device_dense: accepted for Horovod's sake.
        compression: the form in which tensors travel between hosts, or a compressor of your own; see `Compression`.
        op: `Average` or `Sum`.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.
        process_set: the ranks that take part.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.

    Returns:
        This rank's rows.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
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
    """Reduce several tensors as one operation per dtype, and keep this rank's rows of each; see `reducescatter`.

    Args:
        tensors: at least one.
        device_dense: accepted for Horovod's sake.
        compression: the form in which tensors travel between hosts, or a compressor of your own; see `Compression`.
        op: `Average` or `Sum`.
        process_set: the ranks that take part.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        name: how the ranks match the operation. Unnamed calls are matched by their order; in a graph they are named.

    Returns:
        This rank's parts, in the order of `tensors`.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    collective = _reduction("reducescatter", name, op, compression, prescale_factor, postscale_factor, process_set)
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return compressed(compression, given, lambda tensors: autograd.reducescatter(tensors, collective))
