"""Checks of the arguments of a collective, before any rank begins it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from distrun.errors import UsageError


class ArgumentError(UsageError, RuntimeError, TypeError):
    """An argument of a collective or a message is impossible. torch's own backends raise any of these base classes."""


def check_lists(name: str, argument: object, depth: int) -> None:
    """Check that an argument of the method `name` is a list of tensors, or with depth 2 a list of such lists.

    A tensor is not accepted as a list of its rows.

    Raises:
        ArgumentError: it is anything else.
    """
    if isinstance(argument, Tensor) or not isinstance(argument, Sequence):
        kind = f"tensor of shape {list(argument.shape)}" if isinstance(argument, Tensor) else type(argument).__name__
        raise ArgumentError(f"{name}() was given a {kind} where it takes a list of tensors: put it into a list")
    if depth > 1:
        for each in argument:
            check_lists(name, each, depth - 1)


def check_single(name: str, tensors: Sequence[object]) -> None:
    """Check that a list for the method `name` has one element.

    Raises:
        ArgumentError: it has more, or none.
    """
    if len(tensors) != 1:
        raise ArgumentError(f"{name}() was given a list of {len(tensors)} elements: it takes one tensor of each rank")


def check_alike(dtype: torch.dtype, tensors: Iterable[Tensor | None]) -> None:
    """Check that tensors are dense and have the dtype `dtype`.

    Raises:
        ArgumentError: one of them is sparse or has another dtype.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.dtype is not dtype:
            raise ArgumentError(
                f"a collective was given tensors of {dtype} and of {tensor.dtype}: give inputs and outputs of one dtype"
            )
        if tensor.layout is not torch.strided:
            raise ArgumentError(f"a tensor of layout {tensor.layout} cannot travel by itself: use .to_dense()")


def check_one_each(tensors: Sequence[object], size: int) -> None:
    """Check that a list of tensors has one for each of `size` ranks.

    Raises:
        ArgumentError: it has more, or fewer.
    """
    if len(tensors) != size:
        raise ArgumentError(f"a list of {len(tensors)} tensors does not fit {size} ranks: give one for each")
