"""Reductions in place, with the operators of torch.distributed.

Sums, averages, products, minima and maxima are the runtime's. The bitwise operators are done here, on what all ranks
have sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed as dist

from distrun.errors import NotOfferedError, UsageError
from distrun.runtime.collectives.call import Call, moving_call, reduction_call
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, Max, Min, Product, ReduceOp, Sum
from distrun.runtime.process_set import ProcessSet
from distrun.torch import operations, tensors as storage

_Kind: Any = dist.ReduceOp.RedOpType  # whose members its types do not have

_OPS: dict[Any, ReduceOp] = {
    _Kind.SUM: Sum,
    _Kind.AVG: Average,
    _Kind.PRODUCT: Product,
    _Kind.MIN: Min,
    _Kind.MAX: Max,
    _Kind.PREMUL_SUM: Sum,
}
_BITWISE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    _Kind.BAND: torch.bitwise_and,
    _Kind.BOR: torch.bitwise_or,
    _Kind.BXOR: torch.bitwise_xor,
}


class Reducing:
    """The reductions of one process set; calls that come again and again are made once."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._set = process_set
        self._calls: dict[tuple[str, Any], Call] = {}

    def call(self, kind: str, op: Any) -> Call | None:
        """Return the call of an allreduce or a reducescatter; None for an operator that the runtime does not have."""
        which = op.op
        key = (kind, which)
        call = self._calls.get(key)
        if call is None:
            if which in _BITWISE:
                return None
            factor = _factor(op) if which is _Kind.PREMUL_SUM or which == _Kind.PREMUL_SUM else 1.0
            call = reduction_call(kind, None, _OPS[which], factor, 1.0, self._set)
            if which != _Kind.PREMUL_SUM:
                self._calls[key] = call
        return call

    def in_place(self, tensors: Sequence[Tensor], op: Any) -> Handle:
        """Return a reduction of tensors of one dtype, on one device, in their own memory.

        Raises:
            UsageError: the elements do not have the operator, or cannot travel.
        """
        call = self.call("allreduce", op)
        if call is not None:
            return operations.allreduce_in_place(tensors, call, storage.plain_arrays(tensors))
        return _bitwise(tensors, op, moving_call("allgather", None, self._set))


def _factor(op: Any) -> float:
    factor = op.factor
    if isinstance(factor, Tensor):
        if factor.numel() != 1:
            raise NotOfferedError(
                f"PREMUL_SUM with a factor of {factor.numel()} elements is not offered: give a number, or multiply the "
                "tensor before the call"
            )
        return float(factor.item())
    return float(factor)


def _bitwise(tensors: Sequence[Tensor], op: Any, call: Call) -> Handle:
    """Gather the ranks' tensors, and combine them here."""
    dtype = tensors[0].dtype
    if dtype.is_floating_point or dtype.is_complex:
        raise UsageError(f"{op.op.name} has no meaning for {dtype}: use integers or bool, or tensor.view(...)")
    combine = _BITWISE[op.op]
    handle = operations.move_rows([tensor.unsqueeze(0) for tensor in tensors], call)
    gathered = handle.collect

    def collect(handle: Handle) -> list[Tensor]:
        for tensor, stacked in zip(tensors, gathered(handle), strict=True):
            if tensor.numel():
                tensor.detach().copy_(functools.reduce(combine, stacked.unbind(0)))
        return list(tensors)

    handle.collect = collect
    return handle


def by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the places of the tensors of each dtype: one operation takes those of one."""
    groups: dict[tuple[torch.dtype, str], list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device.type), []).append(place)
    return list(groups.values())


def storable(tensor: Tensor) -> Tensor:
    """Return a tensor whose elements are only moved, as one of a dtype that can travel: the 8-bit floats, say, as
    bytes."""
    if tensor.dtype in storage.STORAGE or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    return tensor.view(_SAME_SIZE[tensor.dtype.itemsize])


_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
