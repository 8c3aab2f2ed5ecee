"""Allgather, broadcast and alltoall: the collectives that only move data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.collectives import on_gpu
from distrun.runtime.collectives.tensors import (
    Array,
    check_in_place,
    copied_back,
    flat_of,
    given,
    grouped,
    moving,
    needs_rows,
    new,
    on_host,
    row_size,
    rows,
    rows_given,
    rows_group,
    taken,
    taken_in_place,
)
from distrun.runtime.gpu.arrays import GpuArray
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.process_set import ProcessSet, global_process_set


def _allgather(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet, collect: Callable[[Handle], Any]
) -> Handle:
    shapes = tuple((-1, *needs_rows(tensor, "allgather").shape[1:]) for tensor in tensors)
    flats, dtype, device = rows_given(tensors)
    request = Request("allgather", name, dtype, shapes, process_set=process_set.process_set_id, device=device)
    handle = moving(request, flats, collect, tensors[0].dtype)
    return handle.engine.submit(handle)


def allgather_async(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start `allgather`; the handle's result is the gathered array."""
    return _allgather([taken(tensor)], name, process_set, rows)


def allgather(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The ranks' tensors, one after the other along dimension 0, in which they may differ."""
    return allgather_async(tensor, name, process_set).wait()  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyHandle:
    """Start `grouped_allgather`; the handle's result is the list of gathered arrays."""
    return grouped(tensors, name, lambda group, name: _allgather(group, name, process_set, rows_group))


def grouped_allgather(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """`allgather` of several tensors as one operation."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def _broadcast(tensor: Any, root: int, name: str | None, process_set: ProcessSet, in_place: bool) -> Handle:
    root = process_set.check_root(root)
    if type(tensor) is not np.ndarray:
        tensor = taken_in_place(tensor) if in_place else taken(tensor)
        if isinstance(tensor, GpuArray):
            return on_gpu.broadcast(tensor, root, name, process_set.process_set_id, in_place)
    elif in_place:
        check_in_place(tensor)
    flat, dtype = flat_of(tensor)
    request = Request("broadcast", name, dtype, (tensor.shape,), root=root, process_set=process_set.process_set_id)
    if in_place:
        collect = given if tensor.flags.c_contiguous else copied_back
        return Handle(world.engine(), request, (), (flat,), collect, tensor)
    output = flat.copy() if world.rank() == root else np.empty(flat.size, flat.dtype)
    return Handle(world.engine(), request, (), (output,), new, tensor.dtype)


def broadcast_async(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `broadcast`; the handle's result is the copy."""
    handle = _broadcast(tensor, root_rank, name, process_set, in_place=False)
    return handle.engine.submit(handle)


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `broadcast_`; the handle's result is `tensor`."""
    handle = _broadcast(tensor, root_rank, name, process_set, in_place=True)
    return handle.engine.submit(handle)


def broadcast(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """A copy of the root's tensor; the others' must have the same shape and dtype. `root_rank` is a rank of the world."""
    handle = _broadcast(tensor, root_rank, name, process_set, in_place=False)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Overwrite `tensor` with the root's; returns it."""
    handle = _broadcast(tensor, root_rank, name, process_set, in_place=True)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def rows_per_rank(rows: int, splits: ArrayLike | None, size: int) -> list[int]:
    """How many rows an alltoall sends to each rank: what `splits` says, or an even share.

    Raises:
        UsageError: the splits do not fit the rows or the ranks.
    """
    if splits is None:
        if rows % size:
            raise UsageError(f"alltoall of {rows} rows among {size} ranks does not come out even: give `splits`")
        return [rows // size] * size
    wanted = np.asarray(on_host(splits))
    if wanted.shape != (size,) or not np.issubdtype(wanted.dtype, np.integer) or (wanted < 0).any():
        raise UsageError(f"splits={splits!r} must be {size} whole numbers >= 0, one per rank")
    if wanted.sum() != rows:
        raise UsageError(
            f"splits={wanted.tolist()} sum to {wanted.sum()}, and the tensor has {rows} rows: they must agree"
        )
    return [int(count) for count in wanted]


def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `alltoall`; the handle's result is what `alltoall` returns."""
    array = needs_rows(taken(tensor), "alltoall")
    row = row_size(array.shape) or 1
    counts = rows_per_rank(array.shape[0], splits, process_set.size())
    shapes = ((-1, *array.shape[1:]),)
    flats, dtype, device = rows_given([array])
    request = Request("alltoall", name, dtype, shapes, process_set=process_set.process_set_id, device=device)

    def collect(handle: Handle) -> Any:
        output = rows(handle)
        if splits is None:
            return output
        return output, np.array([count // row for count in handle.received[0]], np.int32)

    handle = moving(request, flats, collect, array.dtype)
    handle.splits = [count * row for count in counts]
    return handle.engine.submit(handle)


def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[i]` rows of `tensor`, in order, to rank i, and receive what the others send here, in rank order.

    Without `splits` every rank gets the same number of rows, and the received array is returned; with them, a pair of it
    and of the int32 vector of rows received from each rank, a numpy array. Splits on a GPU have the host wait for them.
    """
    return alltoall_async(tensor, splits, name, process_set).wait()
