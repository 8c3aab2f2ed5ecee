"""Converts tensors for a collective: the caller's into flat storage arrays for the engine, and its outputs into shaped
results."""

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
"""The types of tensors in a group that needs no conversion, as nearly all groups are."""

LARGE = 256 << 10
"""Bytes. Results of this size or more are allocated in shared memory, where the engine forms them without another
copy."""


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
    """Return an uninitialised array in memory that collectives reach without a copy.

    Fill it and reduce it in place for the highest speed. In a job on one host it lies in memory that the ranks share.
    It is freed when its last view is gone, and stays valid after `shutdown`.

    Args:
        shape: the extents, or the number of elements.
        dtype: any dtype that the collectives take.

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
    """Return the caller's tensor as operations use it: as a numpy array, or as a `GpuArray` if it lies on a GPU."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return on_gpu.take(tensor) if is_on_gpu(tensor) else np.asarray(tensor)


def taken_in_place(tensor: Any) -> Any:
    """Return the caller's tensor as an operation in place uses it (see `taken`).

    Raises:
        UsageError: `tensor` cannot be written to.
    """
    if is_on_gpu(tensor):
        return on_gpu.take(tensor, in_place=True)
    check_in_place(tensor)
    return tensor


def on_host(values: Any) -> Any:
    """Return the splits of an alltoall in host memory. Splits on a GPU are copied, and the host waits for them."""
    return on_gpu.take(values).array.get() if is_on_gpu(values) else values


def flat_of(tensor: Array) -> tuple[Array, str]:
    """Return the tensor's elements as a flat storage array, its own memory if contiguous, else a copy, and the name of
    its dtype.

    `reshape(-1)` alone is not enough: of a strided one-dimensional array it is a view that is not contiguous.
    """
    dtype = dtypes.name_of(tensor.dtype)
    if type(tensor) is not np.ndarray:  # a np.matrix, for example, would stay two-dimensional
        tensor = tensor.view(np.ndarray)
    flat = (tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)).reshape(-1)
    return (flat.view(np.uint16) if dtype == dtypes.BFLOAT16 else flat), dtype


def check_in_place(tensor: Any) -> None:
    """Refuse a tensor that an operation in place cannot write to.

    Raises:
        UsageError: `tensor` is not a numpy array, or is read-only.
    """
    if not isinstance(tensor, np.ndarray):
        raise UsageError(
            f"an in-place operation needs a numpy array, or one on a GPU, not {type(tensor).__name__}: use the form "
            "without _"
        )
    if not tensor.flags.writeable:
        raise UsageError("an in-place operation needs a writable array, and this one is read-only: copy it first")


def room_for(count: int, dtype: np.dtype[Any], engine: AnyEngine) -> Array:
    """Return a flat array of `count` elements for a result: in shared memory if it has `LARGE` bytes or more."""
    if count * dtype.itemsize >= LARGE:
        return engine.backend.empty(count, dtype)
    return np.empty(count, dtype)


def _shaped(output: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if output.dtype is not dtype:  # `is`: comparing dtypes takes longer than a needless view
        output = output.view(dtype)
    return output if output.shape == shape else output.reshape(shape)


def cut(output: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return consecutive views of a flat array, with these shapes."""
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
    """Return the caller's tensor or tensors: the result of an operation in place."""
    return handle.given


def copied_back(handle: Handle) -> Any:
    """Return the caller's tensor or tensors, after copying results back into the non-contiguous ones."""
    tensors = handle.given if isinstance(handle.given, list) else [handle.given]
    for tensor, output in zip(tensors, handle.outputs, strict=True):
        if not tensor.flags.c_contiguous:
            tensor[...] = output.view(tensor.dtype).reshape(tensor.shape)
    return handle.given


def flat_rows(tensor: Array) -> tuple[Array, str]:
    """Return what `flat_of` does, for operations that move rows.

    The receiver counts rows by elements, so a row without elements travels as one element.
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
    """Return the handle of an operation whose outputs the engine allocates, since their sizes depend on all ranks."""
    if request.device == CPU:
        return Handle(world.engine(), request, flats, (), collect, dtype)
    return on_gpu.handle(request, flats, (), collect, dtype)


def rows_group(handle: Handle) -> list[Array]:
    """Return the results of an operation that moves rows, and so decides the extents of their first dimension."""
    if handle.request.device == CUDA:
        return on_gpu.rows_group(handle)
    dtype: np.dtype[Any] = handle.given
    return [_rows_of(output, shape, dtype) for output, shape in zip(handle.outputs, handle.request.shapes, strict=True)]


def move_rows(tensors: Sequence[Any], call: Call, collect: Callable[[Handle], Any] = rows_group) -> Handle:
    """Start an allgather or a reducescatter of tensors that have one dtype and lie on one device."""
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
    """Return the result of an operation that moves the rows of one tensor (see `rows_group`)."""
    return rows_group(handle)[0]


def grouped(
    given: Sequence[Any], call: Call, start: Callable[[Sequence[Any], Call], Handle], take: Callable[[Any], Any] = taken
) -> AnyHandle:
    """Start one operation for each pair of dtype and device among the tensors.

    Args:
        given: the tensors.
        call: the call of the whole group.
        start: starts the operation on tensors that have one dtype and lie on one device.
        take: `taken`, or `taken_in_place`.
    """
    tensors = group_of(given)
    if set(map(type, tensors)) == PLAIN:
        return start_group(tensors, [tensor.dtype for tensor in tensors], call, start)
    tensors = [tensor if type(tensor) is np.ndarray else take(tensor) for tensor in tensors]
    kinds = [f"cuda.{tensor.dtype}" if type(tensor) is GpuArray else tensor.dtype for tensor in tensors]
    return start_group(tensors, kinds, call, start)
