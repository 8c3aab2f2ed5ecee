"""Allreduce and reducescatter of torch tensors, with Horovod's names, arguments and order of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distrun.runtime.collectives import plain
from distrun.runtime.collectives.call import Call, reduction_call
from distrun.runtime.collectives.compressors import Compression, Compressor, compressed, wire_type
from distrun.runtime.collectives.plain import Terms
from distrun.runtime.operations.docstrings import complete_all
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.reduction import Average, ReduceOp, reduce_op
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.torch import autograd, cuda, operations, repeated, tensors as storage
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
    array = None if cuda.is_on_gpu(tensor) else storage.array_of(tensor)
    handle = None if array is None else plain.copied(array, terms, operations.new_tensor)
    return handle or single(tensor, reduction_call("allreduce", *terms), operations.allreduce)


def _allreduce_in_place(tensor: Tensor, terms: Terms) -> Handle:
    handle: Handle | None = None
    if cuda.is_on_gpu(tensor):
        tensors = (tensor,)
        known = repeated.recall(tensors, reduction_call("allreduce", *terms), in_place=True)
        if known is not None:
            return known.in_place(tensors, operations.first_given)
    else:
        array = storage.array_of(tensor)
        handle = None if array is None else plain.in_place(array, terms, tensor)
    return handle or single(tensor, reduction_call("allreduce", *terms), operations.allreduce_in_place)


def _grouped_in_place(tensors: Sequence[Tensor], terms: Terms, start: Callable[[Handle], Handle]) -> AnyHandle:
    return grouped(tensors, reduction_call("allreduce", *terms), operations.allreduce_in_place, start)


def _reduce(
    function: type[torch.autograd.Function], tensors: Sequence[Tensor], call: Call, compression: Compressor
) -> list[Tensor]:
    if compression is Compression.none:
        return list(autograd.apply(function, call, *tensors))
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

    Args:
        tensor: a tensor on the CPU or on this rank's GPU, of one shape and dtype on all ranks.
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
    """Start an allreduce and return at once."""
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
    """Reduce a tensor over the ranks in place."""
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
    """Start an allreduce in place and return at once."""
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
    """Reduce several tensors as one operation per dtype and device. Differentiable.

    An operation starts when every rank has submitted it.
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
    """Start an allreduce of several tensors and return at once."""
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
    """Reduce several tensors in place as one operation per dtype and device."""
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
    """Start an allreduce of several tensors in place and return at once."""
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
    """Reduce a tensor over the ranks and keep this rank's rows of dimension 0. Differentiable."""
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
    """Start a reducescatter and return at once."""
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
    """Reduce several tensors as one operation per dtype and device, and keep this rank's rows. Differentiable."""
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
    """Start a reducescatter of several tensors and return at once."""
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, operations.move_rows, submit)


complete_all(globals())
