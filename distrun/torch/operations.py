"""Turns a `Call` and torch tensors into a handle that is not yet started, and whose result is a list of tensors.

`run` starts a handle for a caller that waits at once, `submit` for one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distrun.runtime.collectives.call import (
    Call,
    elements_per_rank,
    group_of,
    received_rows,
    start_group,
)
from distrun.runtime.collectives.tensors import cut
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.dtypes import name_of
from distrun.runtime.operations.handle import AnyHandle, Handle, outputs_of
from distrun.runtime.operations.request import Request
from distrun.runtime.world import world
from distrun.torch import cuda, repeated, tensors as storage
from distrun.torch.repeated import Repeated
from distrun.torch.tensors import request_of as request_of


def prepare(
    request: Request,
    inputs: Sequence[storage.Flat],
    outputs: Sequence[storage.Flat] = (),
    collect: Callable[[Handle], Any] = outputs_of,
    given: Any = None,
) -> Handle:
    """Return a handle for the device in `request` (see `Handle` for the arguments)."""
    engine = world.engine()
    if request.device == cuda.CPU:
        return Handle(engine, request, inputs, outputs, collect, given)  # type: ignore[arg-type]
    return DeviceHandle(engine, request, inputs, outputs, collect, given, arena=cuda.arena())  # type: ignore[arg-type]


def run(handle: Handle) -> Handle:
    """Start an operation that the caller waits for at once."""
    return handle.engine.run(handle)


def submit(handle: Handle) -> Handle:
    """Start an operation and return at once."""
    return handle.engine.submit(handle)


# Results: `handle.given` is the caller's tensors ----------------------------------------------------------------------


def _new(handle: Handle) -> list[Tensor]:
    """Return the results of an allreduce or a broadcast: views of one buffer."""
    buffer, dtype, shapes = handle.outputs[0], handle.given[0].dtype, handle.request.shapes
    if isinstance(buffer, np.ndarray) and dtype is not torch.bfloat16:
        return [torch.from_numpy(piece) for piece in cut(buffer, shapes)]
    whole = storage.tensor_of(buffer, dtype, (-1,))
    if len(shapes) == 1:
        return [whole.view(shapes[0])]
    parts = torch.split(whole, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def new_tensor(handle: Handle) -> Tensor:
    """Return the result of an allreduce of one plain array (see `collectives.plain`) into a new one."""
    array: NDArray[Any] = handle.outputs[0]
    shape = handle.request.shapes[0]
    return torch.from_numpy(array if len(shape) == 1 else array.reshape(shape))


def _new_rows(handle: Handle) -> list[Tensor]:
    """Return the results of an operation that moves rows, and so decides the extents of their first dimension."""
    dtype = handle.given[0].dtype
    return [
        storage.rows_of(array, dtype, shape) for array, shape in zip(handle.outputs, handle.request.shapes, strict=True)
    ]


def _new_with_rows(handle: Handle) -> list[tuple[Tensor, list[int]]]:
    return [(tensor, received_rows(handle, index)) for index, tensor in enumerate(_new_rows(handle))]


def given(handle: Handle) -> list[Tensor]:
    """Return the caller's tensors, which have the results."""
    return list(handle.given)


def first_given(handle: Handle) -> Tensor:
    """Return the caller's only tensor, which has the result."""
    tensor: Tensor = handle.given[0]
    return tensor


def _in_place(handle: Handle) -> list[Tensor]:
    for tensor, array in zip(handle.given, handle.outputs, strict=True):
        if not storage.is_flat(tensor):  # the operation worked on a copy, so copy it back
            tensor.detach().copy_(storage.tensor_of(array, tensor.dtype, tensor.shape))
    return list(handle.given)


# The operations -------------------------------------------------------------------------------------------------------


Arrays = Sequence[NDArray[Any]]
"""The tensors' `plain_arrays`: one numpy array per tensor, in its memory."""
Plain = Arrays | Repeated
"""The result of `_plain`."""
_shape_of = attrgetter("shape")


def _taken(tensors: Sequence[Tensor], call: Call, arrays: Plain | None) -> tuple[Request, Sequence[storage.Flat]]:
    if type(arrays) is Repeated:
        return arrays.request, arrays.buffers
    if arrays is None:
        return request_of(call, tensors), list(map(storage.flat, tensors))
    request = call.request(name_of(arrays[0].dtype), tuple(map(_shape_of, arrays)))
    return request, [array if array.ndim == 1 else array.reshape(-1) for array in arrays]


def allreduce(tensors: Sequence[Tensor], call: Call, plain: Plain | None = None) -> Handle:
    """Return an allreduce of each of `tensors`, all of one dtype. `plain`: what is known of them if they are plain."""
    if type(plain) is Repeated and plain.arena is not None:
        return plain.into_new(tensors)
    request, flats = _taken(tensors, call, plain)
    return prepare(request, flats, [storage.room_for(flats)], _new, tensors)


def allreduce_in_place(tensors: Sequence[Tensor], call: Call, plain: Plain | None = None) -> Handle:
    """Return an allreduce of each of `tensors` in their own memory (see `allreduce`)."""
    if type(plain) is Repeated:
        return plain.in_place(tensors, given)
    if plain is None:
        storage.check_written(tensors)
    request, flats = _taken(tensors, call, plain)
    return prepare(request, flats, flats, _in_place if plain is None else given, tensors)


def move_rows(tensors: Sequence[Tensor], call: Call, plain: Plain | None = None) -> Handle:
    """Return an allgather or a reducescatter of each of `tensors` (see `allreduce`)."""
    if type(plain) is Repeated:
        return plain.handle(tensors, plain.buffers, (), _new_rows)
    if plain is None or not all(array.size for array in plain):
        return prepare(
            request_of(call, tensors), [storage.flat_rows(tensor) for tensor in tensors], (), _new_rows, tensors
        )
    request, flats = _taken(tensors, call, plain)
    return prepare(request, flats, (), _new_rows, tensors)


def allgather_with_rows(tensors: Sequence[Tensor], call: Call, plain: Plain | None = None) -> Handle:
    """Return an allgather whose results are pairs: the tensor, and the number of its rows from each rank. See
    `allreduce`."""
    handle = move_rows(tensors, call, plain)
    handle.collect = _new_with_rows
    return handle


def broadcast(tensor: Tensor, call: Call, in_place: bool = False) -> Handle:
    """Return a broadcast, into a new tensor or into `tensor`."""
    is_root = world.rank() == call.root
    if cuda.is_on_gpu(tensor):
        known = repeated.recall((tensor,), call, in_place)
        if known is not None:
            outputs: Sequence[Any] = known.buffers
            if not in_place:
                outputs = (repeated.buffer(tensor.detach().clone() if is_root else cuda.new(tensor, tensor.shape)),)
            return known.handle((tensor,), (), outputs, given if in_place else repeated.new)
    request = request_of(call, [tensor])
    if in_place:  # the root's tensor is only read
        if not is_root:
            storage.check_written([tensor])
        return prepare(request, (), (storage.flat(tensor),), given if is_root else _in_place, [tensor])
    output = storage.copy_of(tensor) if is_root else storage.room_for([storage.flat(tensor)])
    return prepare(request, (), (output,), _new, [tensor])


def alltoall(tensor: Tensor, splits: Any, call: Call) -> Handle:
    """Return an alltoall that sends `splits[i]` rows to rank i, or the same number to each rank if `splits` is None."""
    known = repeated.recall((tensor,), call) if cuda.is_on_gpu(tensor) else None
    request = request_of(call, [tensor]) if known is None else known.request
    if isinstance(splits, Tensor):
        splits = splits.tolist()  # on the host, which waits for splits on a GPU
    elements = elements_per_rank(tensor.shape, splits, call.process_set.size())
    if known is None:
        handle = prepare(request, (storage.flat_rows(tensor),), (), _new_rows, [tensor])
    else:
        handle = known.handle((tensor,), known.buffers, (), _new_rows)
    handle.splits = elements
    return handle


# Groups and single tensors --------------------------------------------------------------------------------------------

Make = Callable[[Sequence[Tensor], Call, Plain | None], Handle]
"""Makes a handle of tensors of one dtype and device, from what is known of them if they are plain."""


def grouped(tensors: Sequence[Tensor], call: Call, make: Make, start: Callable[[Handle], Handle]) -> AnyHandle:
    """Start one operation per dtype and device among the tensors, and return one handle for all of them."""
    tensors = group_of(tensors)
    plain = _plain(tensors, call, make, is_waited_for=start is run)
    if plain is not None:
        return start(make(tensors, call, plain))
    return start_group(tensors, list(map(_kind, tensors)), call, lambda group, call: start(make(group, call, None)))


def _kind(tensor: Tensor) -> str:
    """Return the dtype and, unless it is the CPU, the device of a tensor."""
    name = storage.dtype_name(tensor)
    return name if cuda.kind(tensor) == cuda.CPU else f"{name}.{cuda.CUDA}"


def single(tensor: Tensor, call: Call, make: Make) -> Handle:
    """Return a handle whose result is one tensor, not a list of one."""
    tensors = (tensor,)
    return only(make(tensors, call, _plain(tensors, call, make)))


def _plain(tensors: Sequence[Tensor], call: Call, make: Make, is_waited_for: bool = False) -> Plain | None:
    """Return what is kept of the operation, which on the CPU is so of groups alone, or the tensors' `plain_arrays`.
    None if they are not plain.

    Args:
        is_waited_for: whether the caller does nothing before the operation is done.
    """
    if cuda.is_on_gpu(tensors[0]):
        return repeated.recall(tensors, call, make is allreduce_in_place)
    known: Plain | None = None
    if is_waited_for and len(tensors) > 1:
        known = repeated.recall(tensors, call, make is allreduce_in_place, is_on_gpu=False)
    return known or storage.plain_arrays(tensors)


def only(handle: Handle) -> Handle:
    """Make the only element of a handle's result its result, and return the handle."""
    collect = handle.collect
    handle.collect = lambda handle: collect(handle)[0]
    return handle
