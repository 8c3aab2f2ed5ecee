"""The collectives on torch tensors, with Horovod's names, arguments and order of arguments.

What the texts of `distrun.runtime.collectives` say of numpy arrays holds here: names, order, errors. Tensors are on the
CPU or on this rank's GPU, of any torch dtype but the 8-bit floats, of any shape, contiguous or not (one that is not is
copied). In place (the forms ending in `_`) a contiguous tensor is worked on in its own memory, leaf parameters
included. The `_async` forms return a handle for `synchronize` and `poll`. The synchronous forms that are not in place
are differentiable: see `distrun.torch.autograd` for what flows back.

On the GPU an operation begins when the work is done that the submitting thread has queued on its current stream.
Waiting for it lets the current stream of the waiting thread wait, and the host goes on as soon as the operation is
queued: results can be used like those of torch's own computations. What splits or rows say is for the host, and stays
there.

Differences from Horovod: bfloat16, bool, complex and unsigned tensors travel too; 0-dimensional and non-contiguous ones
as well; a handle is an object, not a number; failures are `distrun.CollectiveError`, wrong arguments
`distrun.UsageError` (which is a ValueError)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.runtime.collectives.call import Call, broadcast_call, moving_call, received_rows, reduction_call
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.reduction import Average, ReduceOp, reduce_op
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.torch import autograd, operations
from distrun.torch.compression import Compression, Compressor, wire_type
from distrun.torch.operations import grouped, run, single, submit

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
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


def _reduce(
    function: type[torch.autograd.Function], tensors: Sequence[Tensor], call: Call, compression: Compressor
) -> list[Tensor]:
    wire = wire_type(compression)
    if wire is not None:
        return list(autograd.apply(function, call._replace(wire=wire) if wire else call, *tensors))
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = autograd.apply(function, call, *[tensor for tensor, _ in pairs])
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, pairs, strict=True)]


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
    """`postscale_factor * op(prescale_factor * tensor)` over the ranks, as a new tensor; the same bits on all of them.

    `op`: Average (if None), Sum, Min, Max or Product. float16 and bfloat16 are summed in float32; an average of
    integers is rounded towards zero."""
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
    """Start `allreduce`; the handle's result is the reduced copy. `tensor` must not be changed until then."""
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return submit(single(operations.allreduce([tensor], call)))


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Tensor:
    """`allreduce` in place; returns `tensor`."""
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return run(single(operations.allreduce_in_place([tensor], call))).wait()  # type: ignore[no-any-return]


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> Handle:
    """Start `allreduce_`; the handle's result is `tensor`, which must not be touched until then."""
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return submit(single(operations.allreduce_in_place([tensor], call)))


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
    """`allreduce` of several tensors as one operation per dtype and device: none starts before every rank has submitted
    it."""
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
    """Start `grouped_allreduce`; the handle's result is the list of reduced copies."""
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, operations.allreduce, submit)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> list[Tensor]:
    """`grouped_allreduce` in place; returns the tensors given."""
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, operations.allreduce_in_place, run).wait()


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _World,
) -> AnyHandle:
    """Start `grouped_allreduce_`; the handle's result is the list of the tensors given."""
    call = reduction_call("allreduce", name, reduce_op(average, op), prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, operations.allreduce_in_place, submit)


# Allgather ------------------------------------------------------------------------------------------------------------


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """The ranks' tensors, one after the other along dimension 0, in which they may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = _World) -> Handle:
    """Start `allgather`; the handle's result is the gathered tensor."""
    return submit(single(operations.move_rows([tensor], moving_call("allgather", name, process_set))))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _World
) -> list[Tensor]:
    """`allgather` of several tensors as one operation per dtype and device."""
    return list(autograd.apply(autograd.Allgather, moving_call("allgather", name, process_set), *tensors))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _World
) -> AnyHandle:
    """Start `grouped_allgather`; the handle's result is the list of gathered tensors."""
    return grouped(tensors, moving_call("allgather", name, process_set), operations.move_rows, submit)


# Broadcast ------------------------------------------------------------------------------------------------------------


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """A copy of the root's tensor; the others' must have the same shape and dtype."""
    return autograd.apply(  # type: ignore[no-any-return]
        autograd.Broadcast, broadcast_call(name, root_rank, process_set), tensor
    )


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start `broadcast`; the handle's result is the copy."""
    return submit(single(operations.broadcast(tensor, broadcast_call(name, root_rank, process_set))))


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """Overwrite `tensor` with the root's; returns it."""
    handle = operations.broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)
    return run(single(handle)).wait()  # type: ignore[no-any-return]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start `broadcast_`; the handle's result is `tensor`."""
    return submit(single(operations.broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)))


# Alltoall -------------------------------------------------------------------------------------------------------------


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Tensor | tuple[Tensor, Tensor]:
    """Send `splits[i]` rows of `tensor`, in order, to rank i, and receive what the others send here, in rank order.

    Without `splits` every rank gets the same number of rows, and the received tensor is returned; with them (a list or
    an integer tensor), a pair of it and of the int32 tensor of rows received from each rank."""
    received, rows = autograd.apply(autograd.Alltoall, moving_call("alltoall", name, process_set), splits, tensor)
    return received if splits is None else (received, rows)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start `alltoall`; the handle's result is what `alltoall` returns."""
    handle = single(operations.alltoall(tensor, splits, moving_call("alltoall", name, process_set)))
    if splits is not None:
        only = handle.collect
        handle.collect = lambda handle: (
            only(handle),
            torch.tensor(received_rows(handle), dtype=torch.int32, device="cpu"),
        )
    return submit(handle)


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
    """Reduce over the ranks and keep this rank's rows: an even share of dimension 0, the earlier ranks one more if need
    be.

    `op`: Average or Sum.
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
    """Start `reducescatter`; the handle's result is this rank's part."""
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return submit(single(operations.move_rows([tensor], call)))


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = _World,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """`reducescatter` of several tensors as one operation per dtype and device."""
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
    """Start `grouped_reducescatter`; the handle's result is the list of this rank's parts."""
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, operations.move_rows, submit)
