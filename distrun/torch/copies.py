"""Allgather, broadcast and alltoall of torch tensors, with Horovod's names, arguments and order of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.runtime.collectives.call import broadcast_call, moving_call, received_rows
from distrun.runtime.operations.docstrings import complete_all
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
    """Concatenate the ranks' tensors along dimension 0, in rank order. Differentiable."""
    return grouped_allgather([tensor], name, process_set)[0]


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = _World) -> Handle:
    """Start an allgather and return at once."""
    return submit(single(tensor, moving_call("allgather", name, process_set), operations.move_rows))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _World
) -> list[Tensor]:
    """Gather several tensors as one operation per dtype and device, each as `allgather` does. Differentiable."""
    return list(autograd.apply(autograd.Allgather, moving_call("allgather", name, process_set), *tensors))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = _World
) -> AnyHandle:
    """Start an allgather of several tensors and return at once."""
    return grouped(tensors, moving_call("allgather", name, process_set), operations.move_rows, submit)


# Broadcast ------------------------------------------------------------------------------------------------------------


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """Copy the root's tensor to all ranks. Differentiable."""
    return autograd.apply(  # type: ignore[no-any-return]
        autograd.Broadcast, broadcast_call(name, root_rank, process_set), tensor
    )


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start a broadcast and return at once."""
    return submit(only(operations.broadcast(tensor, broadcast_call(name, root_rank, process_set))))


def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World) -> Tensor:
    """Overwrite a tensor with the root's."""
    handle = operations.broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)
    return run(only(handle)).wait()  # type: ignore[no-any-return]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start a broadcast in place and return at once."""
    return submit(only(operations.broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)))


# Alltoall -------------------------------------------------------------------------------------------------------------


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Tensor | tuple[Tensor, Tensor]:
    """Send rows of a tensor to each rank, and receive the rows that the others send. Differentiable."""
    received, rows = autograd.apply(autograd.Alltoall, moving_call("alltoall", name, process_set), splits, tensor)
    return received if splits is None else (received, rows)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Handle:
    """Start an alltoall and return at once."""
    handle = only(operations.alltoall(tensor, splits, moving_call("alltoall", name, process_set)))
    if splits is not None:
        collect = handle.collect
        handle.collect = lambda handle: (
            collect(handle),
            torch.tensor(received_rows(handle), dtype=torch.int32, device="cpu"),
        )
    return submit(handle)


complete_all(globals())
