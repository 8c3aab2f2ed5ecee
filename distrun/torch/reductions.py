"""Allreduce and reducescatter of torch tensors, with Horovod's names, arguments and order of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distrun.runtime.collectives import plain
from distrun.runtime.collectives.call import Call, group_of, reduction_call
from distrun.runtime.collectives.compressors import Compression, Compressor, compressed, wire_type
from distrun.runtime.collectives.plain import Terms
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.reduction import Average, ReduceOp, reduce_op
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.torch import autograd, operations, tensors as storage
from distrun.torch.operations import grouped, run, single, submit

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

_World = global_process_set


# Allreduce ------------------------------------------------------------------------------------------------------------


def _allreduce(tensor: Tensor, terms: Terms) -> Handle:
    """Return the handle of an allreduce into a new tensor."""
    array = storage.array_of(tensor)
    handle = None if array is None else plain.copied(array, terms, operations.new_tensor)
    return handle or single(tensor, reduction_call("allreduce", *terms), operations.allreduce)


def _allreduce_in_place(tensor: Tensor, terms: Terms) -> Handle:
    array = storage.array_of(tensor)
    handle = None if array is None else plain.in_place(array, terms, tensor)
    return handle or single(tensor, reduction_call("allreduce", *terms), operations.allreduce_in_place)


def _grouped_in_place(tensors: Sequence[Tensor], terms: Terms, start: Callable[[Handle], Handle]) -> AnyHandle:
    tensors = group_of(tensors)
    arrays = storage.arrays_of(tensors)
    handle = None if arrays is None else plain.group_in_place(arrays, terms, tensors)
    if handle is not None:
        return start(handle)
    return grouped(tensors, reduction_call("allreduce", *terms), operations.allreduce_in_place, start)


def _reduce(
    function: type[torch.autograd.Function], tensors: Sequence[Tensor], call: Call, compression: Compressor
) -> list[Tensor]:
    wire = wire_type(compression)
    call = call._replace(wire=wire) if wire else call
    return compressed(compression, tensors, lambda given: autograd.apply(function, call, *given))


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Tensor:
    """Reduce a tensor over the ranks: `postscale_factor * op(prescale_factor * tensor)`. Differentiable.

    All ranks get the same bits. float16 and bfloat16 are summed in float32; an average of integers is rounded towards
    zero.

    Args:
        tensor: a tensor on the CPU or on this rank's GPU, of one shape and dtype on all ranks.
        average: Horovod's older way of choosing between `Average` and `Sum`; not together with `op`.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        compression: the form in which tensors travel between hosts; see `Compression`.
        op: `Average` (if None), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        A new tensor.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return _reduce(autograd.Allreduce, [tensor], call, compression)[0]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Handle:
    """Start `allreduce` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the reduced copy; `tensor` must not be changed until then.
    """
    terms = (name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return submit(_allreduce(tensor, terms))


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Tensor:
    """Reduce a tensor over the ranks in place; takes the arguments of `allreduce`, and raises what it raises.

    Returns:
        `tensor`.
    """
    terms = (name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return run(_allreduce_in_place(tensor, terms)).wait()  # type: ignore[no-any-return]


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Handle:
    """Start `allreduce_` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is `tensor`, which must be neither read nor changed until then.
    """
    terms = (name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return submit(_allreduce_in_place(tensor, terms))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> list[Tensor]:
    """Reduce several tensors as one operation per dtype and device: none starts before every rank has submitted it.

    All ranks get the same bits. float16 and bfloat16 are summed in float32; an average of integers is rounded towards
    zero.

    Args:
        tensors: the same list of dtypes and shapes on all ranks; at least one.
        average: Horovod's older way of choosing between `Average` and `Sum`; not together with `op`.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        compression: the form in which tensors travel between hosts; see `Compression`.
        op: `Average` (if None), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.

    Returns:
        The new tensors, in the order of `tensors`.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return _reduce(autograd.Allreduce, tensors, call, compression)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> AnyHandle:
    """Start `grouped_allreduce` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the list of reduced copies.
    """
    terms = (name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return grouped(tensors, reduction_call("allreduce", *terms), operations.allreduce, submit)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> list[Tensor]:
    """Reduce several tensors in place as one operation per dtype and device; takes the arguments of
    `grouped_allreduce`.

    Returns:
        The tensors given.
    """
    terms = (name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return _grouped_in_place(tensors, terms, run).wait()


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> AnyHandle:
    """Start `grouped_allreduce_` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the list of the tensors given.
    """
    terms = (name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return _grouped_in_place(tensors, terms, submit)


# Reducescatter --------------------------------------------------------------------------------------------------------


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce a tensor over the ranks and keep this rank's rows of dimension 0. Differentiable.

    Each rank keeps an even share, the earlier ranks one row more where it does not come out even.

    Args:
        tensor: of one shape and dtype on all ranks, with at least one dimension.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        compression: the form in which tensors travel between hosts; see `Compression`.
        op: `Average` or `Sum`.
        process_set: the ranks that take part.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.

    Returns:
        A new tensor of this rank's rows.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return _reduce(autograd.Reducescatter, [tensor], call, compression)[0]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start `reducescatter` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is this rank's part.
    """
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return submit(single(tensor, call, operations.move_rows))


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce several tensors as one operation per dtype and device, and keep this rank's rows of each; see
    `reducescatter`.

    Args:
        tensors: at least one.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        compression: the form in which tensors travel between hosts; see `Compression`.
        op: `Average` or `Sum`.
        process_set: the ranks that take part.
        prescale_factor: multiplies the elements before they are reduced.
        postscale_factor: multiplies the result.

    Returns:
        This rank's parts, in the order of `tensors`.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return _reduce(autograd.Reducescatter, tensors, call, compression)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> AnyHandle:
    """Start `grouped_reducescatter` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the list of this rank's parts.
    """
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, operations.move_rows, submit)
