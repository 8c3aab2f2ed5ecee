"""Skeletons: a state_dict without its tensors, which travel by themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distrun.torch import cuda
from distrun.torch.tensors import empty


@dataclass(frozen=True)
class TensorSlot:
    """The place of a tensor in a state_dict."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    """The kind of device on which the root has it, and the others will."""

    def empty(self) -> Tensor:
        """Return an uninitialised tensor for this place."""
        return empty(self.kind, math.prod(self.shape), self.dtype).view(self.shape)


def without_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """Return `value` with a `TensorSlot` for each tensor, and append the tensors to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return TensorSlot(len(tensors) - 1, tuple(value.shape), value.dtype, cuda.kind(value))
    if isinstance(value, dict):
        return {key: without_tensors(entry, tensors) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_tensors(entry, tensors) for entry in value)
    return value


def with_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """Return what `without_tensors` was given, or the same with other tensors."""
    if isinstance(value, TensorSlot):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: with_tensors(entry, tensors) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_tensors(entry, tensors) for entry in value)
    return value


def places(value: Any) -> list[TensorSlot]:
    """Return the places in a skeleton, in the order of their index."""
    if isinstance(value, TensorSlot):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
    return [place for entry in entries for place in places(entry)]
