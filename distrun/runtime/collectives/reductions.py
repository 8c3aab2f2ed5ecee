"""Allreduce and reducescatter: the collectives that compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distrun.runtime.collectives import on_gpu, plain
from distrun.runtime.collectives.call import Call, group_of, reduction_call
from distrun.runtime.collectives.plain import Terms
from distrun.runtime.collectives.tensors import (
    PLAIN,
    Array,
    check_in_place,
    copied_back,
    flat_of,
    grouped,
    move_rows,
    new,
    new_group,
    room_for,
    rows,
    taken,
    taken_in_place,
)
from distrun.runtime.gpu.arrays import GpuArray
from distrun.runtime.operations.docstrings import complete_all
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

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


# Allreduce of one tensor ----------------------------------------------------------------------------------------------


def _allreduce(tensor: Any, terms: Terms) -> Handle:
    """Return the handle of an allreduce into a new array."""
    if type(tensor) is np.ndarray:
        handle = plain.copied(tensor, terms, new)
        if handle is not None:
            return handle
    engine, tensor, call = world.engine(), taken(tensor), reduction_call("allreduce", *terms)
    if isinstance(tensor, GpuArray):
        return on_gpu.allreduce([tensor], call, False, False)
    flat, dtype = flat_of(tensor)
    request = call.request(dtype, (tensor.shape,))
    return Handle(engine, request, (flat,), (room_for(flat.size, flat.dtype, engine),), new, tensor.dtype)


def _allreduce_in_place(tensor: Any, terms: Terms) -> Handle:
    if type(tensor) is np.ndarray:
        handle = plain.in_place(tensor, terms, tensor)
        if handle is not None:
            return handle
    engine, tensor, call = world.engine(), taken_in_place(tensor), reduction_call("allreduce", *terms)
    if isinstance(tensor, GpuArray):
        return on_gpu.allreduce([tensor], call, True, False)
    flat, dtype = flat_of(tensor)
    flats = (flat,)
    return Handle(engine, call.request(dtype, (tensor.shape,)), flats, flats, copied_back, tensor)


def allreduce_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce and return at once."""
    handle = _allreduce(tensor, (name, op, prescale_factor, postscale_factor, process_set))
    return handle.engine.submit(handle)


def allreduce_async_(
    tensor: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce in place and return at once."""
    handle = _allreduce_in_place(tensor, (name, op, prescale_factor, postscale_factor, process_set))
    return handle.engine.submit(handle)


def allreduce(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a tensor over the ranks: `postscale_factor * op(prescale_factor * tensor)`.

    Args:
        tensor: this rank's array, of one shape and dtype on all ranks. Any dtype and shape, contiguous or not.
    """
    handle = _allreduce(tensor, (name, op, prescale_factor, postscale_factor, process_set))
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def allreduce_(
    tensor: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a tensor over the ranks in place."""
    handle = _allreduce_in_place(tensor, (name, op, prescale_factor, postscale_factor, process_set))
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


# Allreduce of a group -------------------------------------------------------------------------------------------------


def _allreduce_group(tensors: Sequence[Any], call: Call, in_place: bool) -> Handle:
    """Return the handle of an allreduce of tensors that have one dtype and lie on one device."""
    engine = world.engine()
    if isinstance(tensors[0], GpuArray):
        return on_gpu.allreduce(tensors, call, in_place, True)
    for tensor in tensors if in_place else ():
        check_in_place(tensor)
    flats, names = zip(*map(flat_of, tensors), strict=True)
    request = call.request(names[0], tuple([tensor.shape for tensor in tensors]))
    if in_place:
        return Handle(engine, request, flats, flats, copied_back, tensors)
    room = room_for(sum([flat.size for flat in flats]), flats[0].dtype, engine)
    return Handle(engine, request, flats, (room,), new_group, tensors[0].dtype)


Start = Callable[[Handle], Handle]
"""Starts an operation: `_run` for a caller that waits at once, `_submit` for one that does not."""


def _run(handle: Handle) -> Handle:
    return handle.engine.run(handle)


def _submit(handle: Handle) -> Handle:
    return handle.engine.submit(handle)


def _grouped(given: Sequence[Any], terms: Terms, start: Start, in_place: bool) -> AnyHandle:
    """Start an allreduce of a group."""
    tensors = group_of(given)
    if set(map(type, tensors)) == PLAIN:
        handle = (
            plain.group_in_place(tensors, terms, tensors) if in_place else plain.group_copied(tensors, terms, new_group)
        )
        if handle is not None:
            return start(handle)
    call, take = reduction_call("allreduce", *terms), taken_in_place if in_place else taken
    return grouped(tensors, call, lambda group, call: start(_allreduce_group(group, call, in_place)), take)


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start an allreduce of several tensors and return at once."""
    return _grouped(tensors, (name, op, prescale_factor, postscale_factor, process_set), _submit, False)


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start an allreduce of several tensors in place and return at once."""
    return _grouped(tensors, (name, op, prescale_factor, postscale_factor, process_set), _submit, True)


def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several tensors as one operation: none starts before all ranks have submitted the group.

    Returns:
        The reduced arrays, in the order of `tensors`, as views of one new buffer per dtype.
    """
    return _grouped(tensors, (name, op, prescale_factor, postscale_factor, process_set), _run, False).wait()


def grouped_allreduce_(
    tensors: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several tensors in place as one operation."""
    return _grouped(tensors, (name, op, prescale_factor, postscale_factor, process_set), _run, True).wait()


# Reducescatter --------------------------------------------------------------------------------------------------------


def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start a reducescatter and return at once."""
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return move_rows([taken(tensor)], call, rows)


def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a tensor over the ranks and keep this rank's rows of dimension 0."""
    return reducescatter_async(  # type: ignore[no-any-return]
        tensor, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start a reducescatter of several tensors and return at once."""
    call = reduction_call("reducescatter", name, op, prescale_factor, postscale_factor, process_set)
    return grouped(tensors, call, move_rows)


def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several tensors as one operation and keep this rank's rows of each."""
    return grouped_reducescatter_async(tensors, name, op, prescale_factor, postscale_factor, process_set).wait()


complete_all(globals())
