"""Tensors as the flat arrays the runtime moves, and back: on the CPU the two share their memory.

numpy has no bfloat16, so those elements travel as uint16 under the name "bfloat16"; the runtime knows how to add them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime import collectives

Flat = NDArray[Any]

_NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.uint16: "uint16",
    torch.int16: "int16",
    torch.uint32: "uint32",
    torch.int32: "int32",
    torch.uint64: "uint64",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
_STORAGE = {dtype: np.dtype(np.uint16 if name == "bfloat16" else name) for dtype, name in _NAMES.items()}


def dtype_name(tensor: Tensor) -> str:
    """The runtime's name of a tensor's element type.

    Raises:
        UsageError: this is no tensor, or one that cannot travel: another dtype, another layout, on a GPU.
    """
    if not isinstance(tensor, Tensor):
        raise UsageError(f"a torch.Tensor is needed, not {type(tensor).__name__}: make one with torch.as_tensor(...)")
    if tensor.device.type != "cpu":
        raise UsageError(
            f"a tensor on {tensor.device} cannot travel yet: this version moves CPU tensors, so use .cpu()"
        )
    if tensor.layout is not torch.strided:
        raise UsageError(f"a tensor of layout {tensor.layout} cannot travel by itself: use .to_dense()")
    name = _NAMES.get(tensor.dtype)
    if name is None:
        known = ", ".join(_NAMES.values())
        raise UsageError(f"elements of {tensor.dtype} cannot travel (known: {known}): convert the tensor with .to(...)")
    return name


def flat(tensor: Tensor) -> Flat:
    """The tensor's elements as a flat storage array: its own memory where it is contiguous, otherwise a copy."""
    plain = tensor.detach()
    if plain.is_complex() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    plain = plain.contiguous().view(-1)  # reshape alone would make a strided view of a strided vector
    array: Flat = (plain.view(torch.uint16) if plain.dtype is torch.bfloat16 else plain).numpy()
    return array


def flat_rows(tensor: Tensor) -> Flat:
    """`flat` for operations that move rows. Rows without elements would get lost: they travel as one element each."""
    return flat(tensor) if elements_in_row(tensor.shape) else np.zeros(tensor.shape[0], _STORAGE[tensor.dtype])


def elements_in_row(shape: Sequence[int]) -> int:
    """How many elements one index of the first dimension stands for."""
    return math.prod(shape[1:])


def is_flat(tensor: Tensor) -> bool:
    """Whether `flat` gives the tensor's own memory."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def tensor_of(array: Flat, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor of `dtype` and `shape` in the memory of a flat storage array."""
    tensor = torch.from_numpy(array)
    if tensor.dtype is not dtype:
        tensor = tensor.view(dtype)
    return tensor.view(shape)


def rows_of(array: Flat, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor whose first dimension the data decides; `shape[1:]` are its other ones. See `flat_rows`."""
    if not elements_in_row(shape):
        return torch.empty((array.size, *shape[1:]), dtype=dtype)
    return tensor_of(array, dtype, (-1, *shape[1:]))


def empty_array(count: int, dtype: torch.dtype) -> Flat:
    """A flat storage array for `count` elements of `dtype`, in the memory that collectives reach without a copy."""
    return collectives.empty(count, _STORAGE[dtype])


def room_for(arrays: Sequence[Flat]) -> Flat:
    """One array in which the result of an operation on `arrays`, taken as one, is formed."""
    count, dtype = sum([array.size for array in arrays]), arrays[0].dtype
    return collectives.empty(count, dtype) if count * dtype.itemsize >= collectives.LARGE else np.empty(count, dtype)
