"""Checks of what scripts give to a collective, before any rank begins it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from distrun.errors import UsageError


def check_alike(dtype: torch.dtype, tensors: Iterable[Tensor | None]) -> None:
    """Make sure that tensors are dense and have one dtype.

    Raises:
        UsageError: one of them is not so.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.dtype is not dtype:
            raise UsageError(
                f"a collective was given tensors of {dtype} and of {tensor.dtype}: give inputs and outputs of one dtype"
            )
        if tensor.layout is not torch.strided:
            raise UsageError(f"a tensor of layout {tensor.layout} cannot travel by itself: use .to_dense()")


def check_one_each(tensors: Sequence[object], size: int) -> None:
    """Make sure that a list of tensors has one for each of `size` ranks.

    Raises:
        UsageError: it has more, or fewer.
    """
    if len(tensors) != size:
        raise UsageError(f"a list of {len(tensors)} tensors does not fit {size} ranks: give one for each")
