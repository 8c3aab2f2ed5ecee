"""Tensors on their way in and out of a collective: flat storage arrays for the engine, shaped results for the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.collectives import on_gpu
from distrun.runtime.gpu.arrays import GpuArray, is_on_gpu
from distrun.runtime.operations import dtypes
from distrun.runtime.operations.handle import AnyHandle, Handle, HandleGroup
from distrun.runtime.operations.request import CPU, CUDA, Request

Array = NDArray[Any]

LARGE = 256 << 10
"""Bytes from which a result is allocated in shared memory, where it is formed without another copy."""


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
    """An uninitialised array in the memory that collectives reach without a copy; otherwise an ordinary array.

    Fill it and reduce it in place for the highest speed. In a job on one host it lies in memory the ranks share; it is
    freed when the last view of it is gone, and survives `shutdown`.

    Raises:
        UsageError: a negative extent, or a dtype that cannot travel.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in shape):
        raise UsageError(f"shape {shape} has a negative extent: give extents >= 0")
    dtype = np.dtype(dtype)
    dtypes.name_of(dtype)  # refuse what cannot travel
    return world.engine().backend.empty(math.prod(shape), dtype).reshape(shape)


def taken(tensor: Any) -> Any:
    """What is given to an operation, as it works on it: a numpy array, or a `GpuArray` of one that lies on a GPU."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return on_gpu.take(tensor) if is_on_gpu(tensor) else np.asarray(tensor)


def taken_in_place(tensor: Any) -> Any:
    """The same for an operation in place. Refuses what it cannot write to."""
    if is_on_gpu(tensor):
        return on_gpu.take(tensor, in_place=True)
    check_in_place(tensor)
    return tensor


def on_host(values: Any) -> Any:
    """Numbers that say what to do, and so are needed on the host."""
    return on_gpu.take(values).array.get() if is_on_gpu(values) else values


def flat_of(tensor: Array) -> tuple[Array, str]:
    """A flat storage array of the tensor's elements and its type's name: its own memory where contiguous, else a copy.

    `reshape(-1)` alone would not do: of a strided one-dimensional array it is a view, and not contiguous.
    """
    dtype = dtypes.name_of(tensor.dtype)
    if type(tensor) is not np.ndarray:  # a matrix, say, which would stay two-dimensional
        tensor = tensor.view(np.ndarray)
    flat = (tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)).reshape(-1)
    return (flat.view(np.uint16) if dtype == dtypes.BFLOAT16 else flat), dtype


def check_in_place(tensor: Any) -> None:
    """Refuse what an in-place operation cannot write to."""
    if not isinstance(tensor, np.ndarray):
        raise UsageError(
            f"an in-place operation needs a numpy array, or one on a GPU, not {type(tensor).__name__}: use the form without _"
        )
    if not tensor.flags.writeable:
        raise UsageError("an in-place operation needs a writable array, and this one is read-only: copy it first")


def room_for(count: int, dtype: np.dtype[Any], engine: world.AnyEngine) -> Array:
    if count * dtype.itemsize >= LARGE:
        return engine.backend.empty(count, dtype)
    return np.empty(count, dtype)


def _shaped(output: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if output.dtype != dtype:
        output = output.view(dtype)
    return output if output.shape == shape else output.reshape(shape)


def _cut(output: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The pieces of a flat array that have these shapes, as views."""
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
    """The results of a group, which lie in one new buffer."""
    output: Array = handle.outputs[0]
    return _cut(output if output.dtype == handle.given else output.view(handle.given), handle.request.shapes)


def new(handle: Handle) -> Array:
    return _shaped(handle.outputs[0], handle.request.shapes[0], handle.given)


def given(handle: Handle) -> Any:
    """The result of an operation in place: what the caller gave."""
    return handle.given


def copied_back(handle: Handle) -> Any:
    """The same where not all of it was contiguous, so that the operation worked on a copy."""
    tensors = handle.given if isinstance(handle.given, list) else [handle.given]
    for tensor, output in zip(tensors, handle.outputs, strict=True):
        if not tensor.flags.c_contiguous:
            tensor[...] = output.view(tensor.dtype).reshape(tensor.shape)
    return handle.given


def flat_rows(tensor: Array) -> tuple[Array, str]:
    """`flat_of` for operations that move rows. Rows without elements would get lost: they travel as one element each."""
    flat, dtype = flat_of(tensor)
    return (np.zeros(tensor.shape[0], flat.dtype) if row_size(tensor.shape) == 0 else flat), dtype


def rows_given(tensors: Sequence[Any]) -> tuple[Sequence[Any], str, str]:
    """`flat_rows` of tensors of one dtype that lie in one place; the name of the dtype, and of the place."""
    if isinstance(tensors[0], GpuArray):
        return *on_gpu.flat_rows(tensors), CUDA
    flats, names = zip(*map(flat_rows, tensors), strict=True)
    return flats, names[0], CPU


def moving(request: Request, flats: Sequence[Any], collect: Callable[[Handle], Any], dtype: np.dtype[Any]) -> Handle:
    """A handle for an operation that makes its outputs itself."""
    if request.device == CPU:
        return Handle(world.engine(), request, flats, (), collect, dtype)
    return on_gpu.handle(request, flats, (), collect, dtype)


def row_size(shape: Sequence[int]) -> int:
    """Elements in a row."""
    return math.prod(shape[1:])


def rows_group(handle: Handle) -> list[Array]:
    """For results whose first dimension the operation decides."""
    if handle.request.device == CUDA:
        return on_gpu.rows_group(handle)
    dtype: np.dtype[Any] = handle.given
    return [
        _shaped(output, (-1, *shape[1:]), dtype) if row_size(shape) else np.empty((output.size, *shape[1:]), dtype)
        for output, shape in zip(handle.outputs, handle.request.shapes, strict=True)
    ]


def rows(handle: Handle) -> Array:
    return rows_group(handle)[0]


def grouped(
    given: Sequence[Any],
    name: str | None,
    start: Callable[[Sequence[Any], str | None], Handle],
    take: Callable[[Any], Any] = taken,
) -> AnyHandle:
    """Start one operation for each dtype among the tensors, and for those on a GPU operations of their own.

    `take`: `taken`, or `taken_in_place`.
    """
    tensors = list(given)
    if not tensors:
        raise UsageError("a group needs at least one tensor, and this one is empty: leave the call out, on all ranks")
    if set(map(type, tensors)) == _PLAIN:
        kinds = [tensor.dtype for tensor in tensors]
    else:
        tensors = [tensor if type(tensor) is np.ndarray else take(tensor) for tensor in tensors]
        kinds = [f"cuda.{tensor.dtype}" if type(tensor) is GpuArray else tensor.dtype for tensor in tensors]
    if len(set(kinds)) == 1:
        return start(tensors, name)
    groups: dict[Any, list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    return HandleGroup(
        [
            (start([tensors[place] for place in places], name and f"{name}.{kind}"), places)
            for kind, places in groups.items()
        ]
    )


_PLAIN = {np.ndarray}


def needs_rows(tensor: Array, kind: str) -> Array:
    if tensor.ndim == 0:
        raise UsageError(f"{kind} divides the first dimension, and a 0-dimensional tensor has none: reshape it to (1,)")
    return tensor
