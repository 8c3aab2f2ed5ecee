"""Tensors on their way in and out of a collective: flat storage arrays for the engine, shaped results for the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distrun.errors import UsageError
from distrun.runtime import dtypes, world
from distrun.runtime.handles import AnyHandle, Handle, HandleGroup

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
            f"an in-place operation needs a numpy array, not {type(tensor).__name__}: use the form without _"
        )
    if not tensor.flags.writeable:
        raise UsageError("an in-place operation needs a writable array, and this one is read-only: copy it first")


def only_arrays(tensors: Sequence[Any]) -> list[Array]:
    """The tensors of a group to be worked on in place."""
    for tensor in tensors:
        if type(tensor) is not np.ndarray:
            check_in_place(tensor)
    return list(tensors)


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


def row_size(shape: Sequence[int]) -> int:
    """Elements in a row."""
    return math.prod(shape[1:])


def rows_group(handle: Handle) -> list[Array]:
    """For results whose first dimension the operation decides."""
    dtype: np.dtype[Any] = handle.given
    return [
        _shaped(output, (-1, *shape[1:]), dtype) if row_size(shape) else np.empty((output.size, *shape[1:]), dtype)
        for output, shape in zip(handle.outputs, handle.request.shapes, strict=True)
    ]


def rows(handle: Handle) -> Array:
    return rows_group(handle)[0]


def _same_dtype(tensors: Sequence[Array]) -> list[list[int]]:
    """The indices of the tensors, by dtype: a group of several dtypes travels as one operation per dtype."""
    places: dict[np.dtype[Any], list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    return list(places.values())


def grouped(
    tensors: Sequence[Array], name: str | None, start: Callable[[Sequence[Array], str | None], Handle]
) -> AnyHandle:
    """Start one operation per dtype among the tensors."""
    if not tensors:
        raise UsageError("a group needs at least one tensor, and this one is empty: leave the call out, on all ranks")
    if len({tensor.dtype for tensor in tensors}) == 1:
        return start(tensors, name)
    groups = _same_dtype(tensors)
    return HandleGroup(
        [
            (start([tensors[place] for place in places], name and f"{name}.{tensors[places[0]].dtype}"), places)
            for places in groups
        ]
    )


def arrays(tensors: Sequence[ArrayLike]) -> list[Array]:
    return [tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor) for tensor in tensors]


def needs_rows(tensor: Array, kind: str) -> Array:
    if tensor.ndim == 0:
        raise UsageError(f"{kind} divides the first dimension, and a 0-dimensional tensor has none: reshape it to (1,)")
    return tensor
