"""Allgather, broadcast and alltoall of torch tensors, with Horovod's names, arguments and order of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.runtime.collectives.call import broadcast_call, moving_call, received_rows
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.torch import autograd, operations
from distrun.torch.operations import grouped, only, run, single, submit

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]

_World = global_process_set


# Allgather ------------------------------------------------------------------------------------------------------------


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable.

    Args:
        tensor: of one dtype on all ranks, and of one shape but for the extent of dimension 0.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        A new tensor, the same on all ranks.

    Raises:
        UsageError: a 0-dimensional tensor.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = _World) -> Handle:
    """Start `allgather` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the gathered tensor.
    """
    return submit(single(tensor, moving_call("allgather", name, process_set), operations.move_rows))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _World
) -> list[Tensor]:
    """Gather several tensors as one operation per dtype and device, each for itself as `allgather` does.

    Args:
        tensors: at least one.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The gathered tensors, in the order of `tensors`.

    Raises:
        UsageError: an argument is impossible.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return list(autograd.apply(autograd.Allgather, moving_call("allgather", name, process_set), *tensors))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _World
) -> AnyHandle:
    """Start `grouped_allgather` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the list of gathered tensors.
    """
    return grouped(tensors, moving_call("allgather", name, process_set), operations.move_rows, submit)


# Broadcast ------------------------------------------------------------------------------------------------------------


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """Copy the root's tensor to all ranks. Differentiable.

    Args:
        tensor: on the root what is copied; elsewhere one of the same shape and dtype.
        root_rank: the rank, in the world, whose tensor it is.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        A new tensor, on the root as well.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return autograd.apply(  # type: ignore[no-any-return]
        autograd.Broadcast, broadcast_call(name, root_rank, process_set), tensor
    )


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start `broadcast` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is the copy.
    """
    return submit(only(operations.broadcast(tensor, broadcast_call(name, root_rank, process_set))))


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """Overwrite a tensor with the root's; takes the arguments of `broadcast`, and raises what it raises.

    Returns:
        `tensor`.
    """
    handle = operations.broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)
    return run(only(handle)).wait()  # type: ignore[no-any-return]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start `broadcast_` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is `tensor`, which must be neither read nor changed until then.
    """
    return submit(only(operations.broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)))


# Alltoall -------------------------------------------------------------------------------------------------------------


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Tensor | tuple[Tensor, Tensor]:
    """Send rows of a tensor to each rank, and receive those that the others send here. Differentiable.

    Args:
        tensor: its rows are sent in order, the first ones to rank 0.
        splits: the rows to send to each rank, a list or an integer tensor. None: as many to each rank.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The received rows, in the order of the ranks that sent them; with `splits`, a pair of them and of the int32
        tensor of the rows received from each rank.

    Raises:
        UsageError: the splits do not fit the rows or the ranks, or a 0-dimensional tensor.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    received, rows = autograd.apply(autograd.Alltoall, moving_call("alltoall", name, process_set), splits, tensor)
    return received if splits is None else (received, rows)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start `alltoall` without waiting for it; takes its arguments.

    Returns:
        A handle whose result is what `alltoall` returns.
    """
    handle = only(operations.alltoall(tensor, splits, moving_call("alltoall", name, process_set)))
    if splits is not None:
        collect = handle.collect
        handle.collect = lambda handle: (
            collect(handle),
            torch.tensor(received_rows(handle), dtype=torch.int32, device="cpu"),
        )
    return submit(handle)
