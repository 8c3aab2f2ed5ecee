"""Skeletons: state_dicts without their tensors. Between ranks a skeleton is pickled, and tensors are broadcast."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distrun.torch import cuda
from distrun.torch.tensors import empty


@dataclass(frozen=True)
class TensorSlot:
    """The stand-in for a tensor in a skeleton."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    """The kind of device that the tensor is on, on every rank."""

    def empty(self) -> Tensor:
        """Return an uninitialised tensor for this slot."""
        return empty(self.kind, math.prod(self.shape), self.dtype).view(self.shape)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class Skeleton:
    """A state_dict, or whatever else, with slots in place of its tensors."""

    form: Any
    slots: Sequence[TensorSlot]
    """The slots in `form`, in order."""

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return what this is the skeleton of, with one of `tensors` in each slot."""
        left = iter(tensors)
        return _mapped(self.form, lambda leaf: next(left) if isinstance(leaf, TensorSlot) else leaf)


def take_apart(value: Any) -> tuple[Skeleton, list[Tensor]]:
    """Return the skeleton of `value`, and the tensors that belong into its slots.

    Tensors are found in dicts, lists and tuples, nested in any way. Anything else stays in the skeleton.
    """
    slots: list[TensorSlot] = []
    tensors: list[Tensor] = []

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        slots.append(TensorSlot(tuple(leaf.shape), leaf.dtype, cuda.kind(leaf)))
        return slots[-1]

    return Skeleton(_mapped(value, taken), slots), tensors


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return `value` with the result of `function` in place of each leaf."""
    if isinstance(value, dict):
        made = copy.copy(value)  # a Counter stays one, and an OrderedDict keeps the versions of modules
        for key, entry in value.items():
            made[key] = _mapped(entry, function)
        return made
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, function) for entry in value)
    return function(value)
