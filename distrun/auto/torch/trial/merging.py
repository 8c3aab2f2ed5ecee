"""Putting the parts of a batch together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def merged(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return the whole batch, given the ranks' parts, or None if it cannot be put together.

    Args:
        parts: what a DataLoader gave each rank: tensors, numbers and text in nested containers.
        sizes: the number of samples in each part.
    """
    try:
        return _merged(parts, sizes)
    except Exception:  # also those that a script's own classes raise when they are compared or created
        return None


class _UnknownError(Exception):
    """A value does not show how it was made from samples."""


def _merged(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise _UnknownError
    if isinstance(first, Tensor):
        return _joined(parts, sizes)
    if isinstance(first, Mapping):
        if any(part.keys() != first.keys() for part in parts):
            raise _UnknownError
        kind: Any = type(first)
        return kind({key: _merged([part[key] for part in parts], sizes) for key in first})
    if isinstance(first, (list, tuple)):
        # With equal parts, a list of this length might as well hold something else than samples.
        if all(len(part) == size for part, size in zip(parts, sizes, strict=True)) and len(set(sizes)) > 1:
            return type(first)(each for part in parts for each in part)  # one for each sample
        if any(len(part) != len(first) for part in parts) or hasattr(first, "_fields"):
            raise _UnknownError
        return type(first)(_merged(each, sizes) for each in zip(*parts, strict=True))
    if all(part == first for part in parts):
        return first
    raise _UnknownError


def _joined(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    shapes = [tuple(part.shape) for part in parts]
    for dim in range(parts[0].dim()):
        others = {shape[:dim] + shape[dim + 1 :] for shape in shapes}
        if [shape[dim] for shape in shapes] == list(sizes) and len(others) == 1:
            return torch.cat(list(parts), dim)
    raise _UnknownError
