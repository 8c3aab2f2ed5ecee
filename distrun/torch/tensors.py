"""Converts tensors to the flat arrays and buffers that the runtime moves, and back. The two share their memory.

A tensor on the CPU becomes a numpy array, a tensor on the GPU a `DeviceBuffer` whose owner is a tensor. numpy has no
bfloat16, so these elements travel as uint16 under the name "bfloat16", and the runtime adds them as bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime import collectives
from distrun.runtime.collectives.call import Call, row_size
from distrun.runtime.collectives.tensors import LARGE
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.operations.request import Request
from distrun.torch import cuda

Flat = NDArray[Any] | DeviceBuffer
"""Consecutive elements of a storage dtype, in host memory or in the memory of this rank's GPU."""

_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}
STORAGE = {dtype: np.dtype(np.uint16 if name == "bfloat16" else name) for dtype, name in _NAMES.items()}
"""The numpy dtype in which the runtime stores the elements of each torch dtype."""


def dtype_name(tensor: Tensor) -> str:
    """Return the runtime's name of a tensor's element type.

    Raises:
        UsageError: `tensor` is not a tensor, or has a dtype, layout or device that cannot travel.
    """
    if not isinstance(tensor, Tensor):
        raise UsageError(f"a torch.Tensor is needed, not {type(tensor).__name__}: make one with torch.as_tensor(...)")
    if cuda.kind(tensor) != cuda.CPU:
        cuda.check(tensor)
    if tensor.layout is not torch.strided:
        raise UsageError(f"a tensor of layout {tensor.layout} cannot travel by itself: use .to_dense()")
    name = _NAMES.get(tensor.dtype)
    if name is None:
        known = ", ".join(_NAMES.values())
        raise UsageError(f"elements of {tensor.dtype} cannot travel (known: {known}): convert the tensor with .to(...)")
    return name


def request_of(call: Call, tensors: Sequence[Tensor]) -> Request:
    """Return the request for tensors of one dtype on one device.

    Raises:
        UsageError: something is not a tensor that can travel (see `dtype_name`), or as `Call.request` raises.
    """
    dtypes = [dtype_name(tensor) for tensor in tensors]
    return call.request(dtypes[0], tuple([tuple(tensor.shape) for tensor in tensors]), cuda.kind(tensors[0]))


def flat(tensor: Tensor) -> Flat:
    """Return the tensor's elements as flat storage: its own memory if it is contiguous, otherwise a copy."""
    plain = tensor.detach()
    if plain.is_complex() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    plain = plain.contiguous().view(-1)  # of a strided vector, reshape(-1) is a strided view
    if cuda.kind(tensor) != cuda.CPU:
        return DeviceBuffer(plain.data_ptr(), plain.numel(), STORAGE[plain.dtype], plain)
    return (plain.view(torch.uint16) if plain.dtype is torch.bfloat16 else plain).numpy()


def flat_rows(tensor: Tensor) -> Flat:
    """Return what `flat` does, for operations that move rows.

    The receiver counts rows by elements, so a row without elements travels as one element.
    """
    if row_size(tensor.shape):
        return flat(tensor)
    if cuda.kind(tensor) != cuda.CPU:
        return flat(empty(cuda.CUDA, tensor.shape[0], tensor.dtype).zero_())
    return np.zeros(tensor.shape[0], STORAGE[tensor.dtype])


def array_of(tensor: Tensor) -> NDArray[Any] | None:
    """Return a tensor as an array of its shape in its own memory, or None if it is not on the CPU, has a dtype that
    numpy lacks, requires a gradient, or is not a tensor.

    This is a fast path for nearly all calls: for a small tensor, the rest of this module costs more than the operation.
    """
    try:
        return cuda.as_array(tensor)
    except (TypeError, RuntimeError):  # a parameter, a tensor on a GPU, bfloat16, conjugate, ...
        return None


def plain_arrays(tensors: Sequence[Tensor]) -> list[NDArray[Any]] | None:
    """Return `array_of` each tensor if all are contiguous and have one dtype, or None otherwise."""
    try:
        arrays = list(map(cuda.as_array, tensors))
    except (TypeError, RuntimeError):
        return None
    dtype = arrays[0].dtype
    for array in arrays:
        if array.dtype is not dtype or not array.flags.carray:
            return None
    return arrays


def is_flat(tensor: Tensor) -> bool:
    """Whether `flat` returns the tensor's own memory."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def check_written(tensors: Iterable[Tensor | None]) -> None:
    """Make sure that results can be written into tensors. Checked before an operation, because torch's own error comes
    only when results are copied back.

    Raises:
        UsageError: elements of a tensor share their memory, as in an expanded tensor.
    """
    for tensor in tensors:
        if tensor is None or tensor.layout is not torch.strided or tensor.is_contiguous():
            continue
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise UsageError(
                f"a tensor of shape {list(tensor.shape)} and strides {list(tensor.stride())} has elements that share "
                "their memory, so a result cannot be written into it: give a copy, tensor.contiguous()"
            )


def tensor_of(array: Flat, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the tensor of `dtype` and `shape` in the memory of flat storage."""
    if isinstance(array, DeviceBuffer):
        owner: Tensor = array.owner
        if owner.dtype is dtype and owner.numel() == array.size:
            return owner.view(shape)
        return _part_of_owner(array, dtype).view(shape)
    tensor = torch.from_numpy(array)
    if tensor.dtype is not dtype:
        tensor = tensor.view(dtype)
    return tensor.view(shape)


def _part_of_owner(buffer: DeviceBuffer, dtype: torch.dtype) -> Tensor:
    """Return the flat tensor in the memory of `buffer`, which may be a part of its owner's."""
    owner: Tensor = buffer.owner
    start = (buffer.pointer - owner.data_ptr()) // buffer.itemsize
    whole = owner.view(-1)
    if whole.dtype is not dtype:
        whole = whole.view(dtype)
    return whole[start : start + buffer.size]


def rows_of(array: Flat, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the tensor in the memory of `array`, with as many rows as it holds. `shape[1:]`: the other dimensions. See
    `flat_rows`."""
    if len(shape) == 1 or row_size(shape):
        return tensor_of(array, dtype, (-1, *shape[1:]))
    device = array.owner.device if isinstance(array, DeviceBuffer) else cuda.CPU
    return torch.empty((array.size, *shape[1:]), dtype=dtype, device=device)


def empty_array(count: int, dtype: torch.dtype) -> NDArray[Any]:
    """Return a flat storage array for `count` elements of `dtype`, in memory that collectives reach without a copy."""
    return collectives.empty(count, STORAGE[dtype])


def empty(kind: str, count: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised flat tensor on the CPU or, if `kind` is CUDA, on this rank's GPU."""
    if kind == cuda.CPU:
        return torch.empty(count, dtype=dtype, device=cuda.CPU)  # explicit, as torch's default device may be another
    return tensor_of(_on_device(count, STORAGE[dtype]), dtype, (-1,))


def _on_device(count: int, dtype: np.dtype[Any]) -> DeviceBuffer:
    """Return memory on this rank's GPU, for use on the current stream."""
    arena = cuda.arena()
    return arena.empty(count, dtype, arena.current_stream())


def room_for(arrays: Sequence[Flat]) -> Flat:
    """Return one array or buffer for the results of an operation on `arrays`, one after the other."""
    count, dtype = sum([array.size for array in arrays]), arrays[0].dtype
    if isinstance(arrays[0], DeviceBuffer):
        return _on_device(count, dtype)
    return collectives.empty(count, dtype) if count * dtype.itemsize >= LARGE else np.empty(count, dtype)


def copy_of(tensor: Tensor) -> Flat:
    """Return the tensor's elements as flat storage that is never its own memory."""
    array = flat(tensor)
    if not isinstance(array, DeviceBuffer):
        copied: NDArray[Any] = array.copy()
        return copied
    copy = _on_device(array.size, array.dtype)
    tensor_of(copy, tensor.dtype, (-1,)).copy_(array.owner)
    return copy
