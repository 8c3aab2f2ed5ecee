"""Tensors on their way in and out of a collective: flat storage arrays for the engine, shaped results for the
caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.runtime.collectives import on_gpu
from distrun.runtime.collectives.call import Call, group_of, row_size, start_group
from distrun.runtime.gpu.arrays import GpuArray, is_on_gpu
from distrun.runtime.operations import dtypes
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.request import CPU, CUDA, Request
from distrun.runtime.world import world
from distrun.runtime.world.bootstrap.facts import AnyEngine

Array = NDArray[Any]

PLAIN = {np.ndarray}
"""The types of the tensors of nearly all groups."""

LARGE = 256 << 10
"""Bytes from which a result is allocated in shared memory, where it is formed without another copy."""


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
    """Return an uninitialised array in memory that collectives reach without a copy.

    Fill it and reduce it in place for the highest speed. In a job on one host it lies in memory that the ranks share.
    It is freed when the last view of it is gone, and survives `shutdown`.

    Args:
        shape: the extents, or the number of elements.
        dtype: any dtype that can travel.

    Raises:
        NotInitializedError: before `init`.
        UsageError: a negative extent, or a dtype that cannot travel.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in shape):
        raise UsageError(f"shape {shape} has a negative extent: give extents >= 0")
    dtype = np.dtype(dtype)
    dtypes.name_of(dtype)  # refuse what cannot travel
    return world.engine().backend.empty(math.prod(shape), dtype).reshape(shape)


def taken(tensor: Any) -> Any:
    """Return the caller's tensor as operations use it: a numpy array, or a `GpuArray` of one that lies on a GPU."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return on_gpu.take(tensor) if is_on_gpu(tensor) else np.asarray(tensor)


def taken_in_place(tensor: Any) -> Any:
    """Return the caller's tensor as an operation in place uses it; see `taken`.

    Raises:
        UsageError: it cannot be written to.
    """
    if is_on_gpu(tensor):
        return on_gpu.take(tensor, in_place=True)
    check_in_place(tensor)
    return tensor


def on_host(values: Any) -> Any:
    """Return the splits of an alltoall in host memory, where they are needed, wherever they lie."""
    return on_gpu.take(values).array.get() if is_on_gpu(values) else values


def flat_of(tensor: Array) -> tuple[Array, str]:
    """Return the tensor's elements as a flat storage array, and its type's name: its own memory if contiguous, else a
    copy.

    `reshape(-1)` alone would not do: of a strided one-dimensional array it is a view, and not contiguous.
    """
    dtype = dtypes.name_of(tensor.dtype)
    if type(tensor) is not np.ndarray:  # a matrix, say, which would stay two-dimensional
        tensor = tensor.view(np.ndarray)
    flat = (tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)).reshape(-1)
    return (flat.view(np.uint16) if dtype == dtypes.BFLOAT16 else flat), dtype


def check_in_place(tensor: Any) -> None:
    """Refuse a tensor that an operation in place cannot write to.

    Raises:
        UsageError: it is not a numpy array, or a read-only one.
    """
    if not isinstance(tensor, np.ndarray):
        raise UsageError(
            f"an in-place operation needs a numpy array, or one on a GPU, not {type(tensor).__name__}: use the form "
            "without _"
        )
    if not tensor.flags.writeable:
        raise UsageError("an in-place operation needs a writable array, and this one is read-only: copy it first")


def room_for(count: int, dtype: np.dtype[Any], engine: AnyEngine) -> Array:
    """Return a flat array for a result: in shared memory if it is large."""
    if count * dtype.itemsize >= LARGE:
        return engine.backend.empty(count, dtype)
    return np.empty(count, dtype)


def _shaped(output: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if output.dtype is not dtype:  # to compare them takes longer than a view of the same type
        output = output.view(dtype)
    return output if output.shape == shape else output.reshape(shape)


def cut(output: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return views of a flat array that have these shapes, one after the other."""
    pieces = []
    start = 0
    for shape in shapes:
        if len(shape) == 1:
            stop = start + shape[0]
            pieces.append(output[start:stop])
        else:
            stop = start + math.prod(shape)
            pieces.append(output[start:stop].reshape(shape))
        start = stop
    return pieces


def new_group(handle: Handle) -> list[Array]:
    """Return the results of a group, which lie in one new buffer."""
    output: Array = handle.outputs[0]
    return cut(output if output.dtype == handle.given else output.view(handle.given), handle.request.shapes)


def new(handle: Handle) -> Array:
    """Return the result of a single operation, which lies in a new buffer."""
    return _shaped(handle.outputs[0], handle.request.shapes[0], handle.given)


def given(handle: Handle) -> Any:
    """Return what the caller gave: the result of an operation in place."""
    return handle.given


def copied_back(handle: Handle) -> Any:
    """Return what the caller gave, after copying into it what the operation, for want of contiguity, did on copies."""
    tensors = handle.given if isinstance(handle.given, list) else [handle.given]
    for tensor, output in zip(tensors, handle.outputs, strict=True):
        if not tensor.flags.c_contiguous:
            tensor[...] = output.view(tensor.dtype).reshape(tensor.shape)
    return handle.given


def flat_rows(tensor: Array) -> tuple[Array, str]:
    """Return what `flat_of` does, for operations that move rows.

    Rows without elements would get lost: they travel as one element each.
    """
    flat, dtype = flat_of(tensor)
    if flat.size or row_size(tensor.shape):
        return flat, dtype
    return np.zeros(tensor.shape[0], flat.dtype), dtype


def rows_given(tensors: Sequence[Any]) -> tuple[Sequence[Any], str, str]:
    """Return `flat_rows` of tensors of one dtype on one device, and the names of the dtype and the device."""
    if isinstance(tensors[0], GpuArray):
        return *on_gpu.flat_rows(tensors), CUDA
    flats, names = zip(*map(flat_rows, tensors), strict=True)
    return flats, names[0], CPU


def moving(request: Request, flats: Sequence[Any], collect: Callable[[Handle], Any], dtype: np.dtype[Any]) -> Handle:
    """Return a handle of an operation that allocates its outputs itself."""
    if request.device == CPU:
        return Handle(world.engine(), request, flats, (), collect, dtype)
    return on_gpu.handle(request, flats, (), collect, dtype)


def rows_group(handle: Handle) -> list[Array]:
    """Return the results of an operation that decides about their first dimension."""
    if handle.request.device == CUDA:
        return on_gpu.rows_group(handle)
    dtype: np.dtype[Any] = handle.given
    return [_rows_of(output, shape, dtype) for output, shape in zip(handle.outputs, handle.request.shapes, strict=True)]


def move_rows(tensors: Sequence[Any], call: Call, collect: Callable[[Handle], Any] = rows_group) -> Handle:
    """Start an allgather or a reducescatter of tensors of one dtype in one place."""
    flats, dtype, device = rows_given(tensors)
    request = call.request(dtype, tuple([tensor.shape for tensor in tensors]), device)
    handle = moving(request, flats, collect, tensors[0].dtype)
    return handle.engine.submit(handle)


def _rows_of(output: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if len(shape) > 1 and not row_size(shape):
        return np.empty((output.size, *shape[1:]), dtype)
    if output.dtype is not dtype:
        output = output.view(dtype)
    return output if len(shape) == 1 else output.reshape(-1, *shape[1:])


def rows(handle: Handle) -> Array:
    """Return the result of a single operation that decides about its first dimension."""
    return rows_group(handle)[0]


def grouped(
    given: Sequence[Any],
    call: Call,
    start: Callable[[Sequence[Any], Call], Handle],
    take: Callable[[Any], Any] = taken,
) -> AnyHandle:
    """Start one operation for each dtype among the tensors, and for those on a GPU operations of their own.

    Args:
        given: the tensors.
        call: the call of the whole group.
        start: starts the operation of tensors of one dtype in one place.
        take: `taken`, or `taken_in_place`.
    """
    tensors = group_of(given)
    if set(map(type, tensors)) == PLAIN:
        return start_group(tensors, [tensor.dtype for tensor in tensors], call, start)
    tensors = [tensor if type(tensor) is np.ndarray else take(tensor) for tensor in tensors]
    kinds = [f"cuda.{tensor.dtype}" if type(tensor) is GpuArray else tensor.dtype for tensor in tensors]
    return start_group(tensors, kinds, call, start)
