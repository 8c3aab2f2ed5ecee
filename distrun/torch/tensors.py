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
    getattr(torch, name): name
    for name in (
        "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128"
    ).split()
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
        raise UsageError(f"a tensor on {tensor.device} cannot travel yet: this version moves CPU tensors, so use .cpu()")
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
    plain = plain.reshape(-1)
    return _numpy(plain.view(torch.uint16) if plain.dtype is torch.bfloat16 else plain)


def _numpy(tensor: Tensor) -> Flat:
    array: Flat = tensor.numpy()
    return array


def is_flat(tensor: Tensor) -> bool:
    """Whether `flat` gives the tensor's own memory."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def tensor_of(array: Flat, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The tensor of `dtype` and `shape` in the memory of a flat storage array. The first dimension may be -1."""
    tensor = torch.from_numpy(array)
    if tensor.dtype is not dtype:
        tensor = tensor.view(dtype)
    if shape and shape[0] == -1 and not math.prod(shape[1:]):
        shape = (0, *shape[1:])  # nothing in a row: the number of rows is not in the data
    return tensor.view(shape)


def empty_array(count: int, dtype: torch.dtype) -> Flat:
    """A flat storage array for `count` elements of `dtype`, in the memory that collectives reach without a copy."""
    return collectives.empty(count, _STORAGE[dtype])


def room_for(array: Flat) -> Flat:
    """An array like `array` for a result to be formed in."""
    if array.nbytes >= collectives.LARGE:
        return collectives.empty(array.size, array.dtype)
    return np.empty(array.size, array.dtype)
