"""Allgather, broadcast and alltoall: the collectives that only move data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distrun.runtime.collectives import on_gpu
from distrun.runtime.collectives.call import (
    Call,
    broadcast_call,
    check_rows,
    elements_per_rank,
    moving_call,
    received_rows,
)
from distrun.runtime.collectives.tensors import (
    Array,
    check_in_place,
    copied_back,
    empty,
    flat_of,
    given,
    grouped,
    move_rows,
    moving,
    new,
    on_host,
    rows,
    rows_given,
    taken,
    taken_in_place,
)
from distrun.runtime.gpu.arrays import GpuArray
from distrun.runtime.operations.docstrings import complete_all
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.tensor_fusion.packing import small_as_one

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


# Allgather ------------------------------------------------------------------------------------------------------------


def allgather_async(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start an allgather and return at once."""
    return move_rows([taken(tensor)], moving_call("allgather", name, process_set), rows)


def allgather(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenate the ranks' tensors along dimension 0, in rank order."""
    return allgather_async(tensor, name, process_set).wait()  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyHandle:
    """Start an allgather of several tensors and return at once."""
    return grouped(tensors, moving_call("allgather", name, process_set), move_rows)


def grouped_allgather(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Gather several tensors as one operation, each as `allgather` does."""
    return grouped_allgather_async(tensors, name, process_set).wait()


# Broadcast ------------------------------------------------------------------------------------------------------------


def _broadcast(tensor: Any, call: Call, in_place: bool) -> Handle:
    if type(tensor) is not np.ndarray:
        tensor = taken_in_place(tensor) if in_place else taken(tensor)
        if isinstance(tensor, GpuArray):
            return on_gpu.broadcast(tensor, call, in_place)
    elif in_place:
        check_in_place(tensor)
    flat, dtype = flat_of(tensor)
    request = call.request(dtype, (tensor.shape,))
    if in_place:
        collect = given if tensor.flags.c_contiguous else copied_back
        return Handle(world.engine(), request, (), (flat,), collect, tensor)
    output = flat.copy() if world.rank() == call.root else np.empty(flat.size, flat.dtype)
    return Handle(world.engine(), request, (), (output,), new, tensor.dtype)


def broadcast_async(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast and return at once."""
    handle = _broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=False)
    return handle.engine.submit(handle)


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast in place and return at once."""
    handle = _broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)
    return handle.engine.submit(handle)


def broadcast(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Copy the root's tensor to all ranks."""
    handle = _broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=False)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Overwrite a tensor with the root's."""
    handle = _broadcast(tensor, broadcast_call(name, root_rank, process_set), in_place=True)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def broadcast_arrays(
    arrays: Sequence[Array], root_rank: int, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite arrays with the root's, all at the speed of one.

    Args:
        arrays: contiguous ones, of any dtypes whose elements are plain bytes, with the same sizes on all ranks.
        root_rank: the rank, in the world, whose arrays they are.
        name: how the ranks match the operations.
        process_set: the ranks that take part.

    Raises:
        UsageError: as `broadcast` raises.
        CollectiveError: the ranks have other sizes, or one is gone.
    """
    flats = [array.reshape(-1).view(np.uint8) for array in arrays if array.nbytes]
    sent, finish = small_as_one(flats, world.rank() == root_rank, lambda size: empty(size, np.uint8), np.concatenate)
    handles = [broadcast_async_(flat, root_rank, f"{name}.{place}", process_set) for place, flat in enumerate(sent)]
    for handle in handles:
        handle.wait()
    finish()


# Alltoall -------------------------------------------------------------------------------------------------------------


def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an alltoall and return at once."""
    process_set.check_included()
    array = taken(tensor)
    check_rows("alltoall", [array.shape])
    elements = elements_per_rank(array.shape, on_host(splits), process_set.size())
    flats, dtype, device = rows_given([array])
    request = moving_call("alltoall", name, process_set).request(dtype, (array.shape,), device)
    handle = moving(request, flats, rows if splits is None else _rows_and_counts, array.dtype)
    handle.splits = elements
    return handle.engine.submit(handle)


def _rows_and_counts(handle: Handle) -> tuple[Array, Array]:
    return rows(handle), np.array(received_rows(handle), np.int32)


def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of a tensor to each rank, and receive the rows that the others send."""
    return alltoall_async(tensor, splits, name, process_set).wait()


complete_all(globals())
