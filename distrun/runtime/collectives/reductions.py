"""Allreduce and reducescatter: the collectives that compute."""

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
    new_group,
    room_for,
    rows,
    rows_given,
    rows_group,
    taken,
    taken_in_place,
)
from distrun.runtime.gpu.arrays import GpuArray
from distrun.runtime.operations import dtypes
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum, check_op
from distrun.runtime.operations.request import Request
from distrun.runtime.process_set import ProcessSet, global_process_set


def _allreduce(
    tensor: Any,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle:
    engine = world.engine()
    if type(tensor) is not np.ndarray:
        tensor = taken_in_place(tensor) if in_place else taken(tensor)
        if isinstance(tensor, GpuArray):
            return on_gpu.allreduce(
                [tensor], name, op, prescale, postscale, process_set.process_set_id, in_place, False
            )
    flat, dtype = flat_of(tensor)
    check_op(op, dtype)
    request = Request(
        "allreduce", name, dtype, (tensor.shape,), op, -1, float(prescale), float(postscale), process_set.process_set_id
    )
    if not in_place:
        return Handle(engine, request, (flat,), (room_for(flat.size, flat.dtype, engine),), new, tensor.dtype)
    collect = given
    if not tensor.flags.carray:
        check_in_place(tensor)
        collect = copied_back
    flats = (flat,)
    return Handle(engine, request, flats, flats, collect, tensor)


def allreduce_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce`; the handle's result is the reduced copy."""
    handle = _allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
    return handle.engine.submit(handle)


def allreduce_async_(
    tensor: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce_`; the handle's result is `tensor`."""
    handle = _allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
    return handle.engine.submit(handle)


def allreduce(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """`postscale_factor * op(prescale_factor * tensor)` over the ranks: a new array of the tensor's shape and dtype.

    All ranks get the same bits. float16 and bfloat16 are summed in float32. An integer average is rounded towards zero.
    """
    handle = _allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def allreduce_(
    tensor: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """`allreduce` in place; returns `tensor`."""
    handle = _allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def _allreduce_group(
    tensors: Sequence[Any],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle:
    engine = world.engine()
    if isinstance(tensors[0], GpuArray):
        return on_gpu.allreduce(tensors, name, op, prescale, postscale, process_set.process_set_id, in_place, True)
    dtype = dtypes.name_of(tensors[0].dtype)
    check_op(op, dtype)
    collect = given
    if dtype != dtypes.BFLOAT16 and all([tensor.flags.carray for tensor in tensors]):  # noqa: C419 - twice as fast
        flats = [tensor.reshape(-1) for tensor in tensors]
    else:
        flats = [flat_of(tensor)[0] for tensor in tensors]
        if in_place:
            collect = copied_back
            for tensor in tensors:
                check_in_place(tensor)
    shapes = tuple([tensor.shape for tensor in tensors])
    request = Request(
        "allreduce", name, dtype, shapes, op, -1, float(prescale), float(postscale), process_set.process_set_id
    )
    if in_place:
        return Handle(engine, request, flats, flats, collect, tensors)
    room = room_for(sum([flat.size for flat in flats]), flats[0].dtype, engine)
    return Handle(engine, request, flats, (room,), new_group, tensors[0].dtype)


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start `grouped_allreduce`; the handle's result is the list of reduced copies."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
        return handle.engine.submit(handle)

    return grouped(tensors, name, start)


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start `grouped_allreduce_`; the handle's result is the list of the tensors given."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
        return handle.engine.submit(handle)

    return grouped(tensors, name, start, taken_in_place)


def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`allreduce` of several tensors as one operation: none starts before all ranks have submitted the group.

    The tensors may differ in dtype and shape; the results are views of one buffer per dtype.
    """

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
        return handle.engine.run(handle)

    return grouped(tensors, name, start).wait()


def grouped_allreduce_(
    tensors: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`grouped_allreduce` in place; returns the tensors given."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
        return handle.engine.run(handle)

    return grouped(tensors, name, start, taken_in_place).wait()


def _reducescatter(
    tensors: Sequence[Any],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    collect: Callable[[Handle], Any],
) -> Handle:
    shapes = tuple(needs_rows(tensor, "reducescatter").shape for tensor in tensors)
    check_op(op, dtypes.name_of(tensors[0].dtype))
    if op not in (Average, Sum):
        raise UsageError(f"reducescatter with op={op} is not offered: use distrun.Sum or distrun.Average, or allreduce")
    flats, dtype, device = rows_given(tensors)
    scales = float(prescale), float(postscale)
    request = Request("reducescatter", name, dtype, shapes, op, -1, *scales, process_set.process_set_id, device)
    handle = moving(request, flats, collect, tensors[0].dtype)
    return handle.engine.submit(handle)


def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `reducescatter`; the handle's result is this rank's part."""
    return _reducescatter([taken(tensor)], name, op, prescale_factor, postscale_factor, process_set, rows)


def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce over the ranks and keep this rank's rows of dimension 0: an even share, the earlier ranks one more if need be."""
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
    """Start `grouped_reducescatter`; the handle's result is the list of this rank's parts."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        return _reducescatter(group, name, op, prescale_factor, postscale_factor, process_set, rows_group)

    return grouped(tensors, name, start)


def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`reducescatter` of several tensors as one operation."""
    return grouped_reducescatter_async(tensors, name, op, prescale_factor, postscale_factor, process_set).wait()
