"""The differentiable collectives: what flows back through each of them is what Horovod sends back.

In general each rank has a loss of its own and gradients are those of the sum of all losses, except that allgather and
broadcast average where a sum would be due, as Horovod's do; a wrapped optimizer averages in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from distrun.errors import UsageError
from distrun.runtime.reduction import Average, Sum
from distrun.torch import operations
from distrun.torch.operations import Call, run

Gradients = tuple[Tensor | None, ...]


def needs_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd must know of an operation on `tensors`."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _contiguous(gradients: Sequence[Tensor]) -> list[Tensor]:
    return [gradient.contiguous() for gradient in gradients]


class Allreduce(torch.autograd.Function):
    """Back flows the allreduce of the gradients with the same op and factors."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tuple(operations.grouped(tensors, call, operations.allreduce, run).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        call: Call = ctx.call
        if call.op not in (Average, Sum):
            raise UsageError(f"allreduce with op={call.op} has no gradient here: reduce tensor.detach() instead")
        return None, *allreduce(_contiguous(gradients), call.named("gradient"))


class Allgather(torch.autograd.Function):
    """Back flows this rank's rows of the averaged gradient."""

    @staticmethod
    def forward(ctx: Any, call: Call, tensor: Tensor) -> Tensor:
        handle = run(operations.allgather([tensor], call))
        (gathered,) = handle.wait()
        before = operations.received_rows(handle)[: call.process_set.rank()]
        ctx.call, ctx.start, ctx.rows = call, sum(before), tensor.shape[0]
        return gathered  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        call: Call = replace(ctx.call.named("gradient"), op=Average)
        (averaged,) = allreduce(_contiguous([gradient]), call)
        if not averaged.numel():  # with nothing in a row, rows are not counted
            return None, averaged.new_zeros((ctx.rows, *averaged.shape[1:]))
        return None, averaged.narrow(0, ctx.start, ctx.rows)


class Reducescatter(torch.autograd.Function):
    """Back flows the ranks' gradients put together, scaled as the sum was."""

    @staticmethod
    def forward(ctx: Any, call: Call, tensor: Tensor) -> Tensor:
        ctx.call = call
        (part,) = run(operations.reducescatter([tensor], call)).wait()
        return part  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        call: Call = ctx.call
        factor = call.prescale * call.postscale
        if call.op is Average:
            factor /= call.process_set.size()
        gathering = Call(call.name, call.process_set).named("gradient")
        gathered = allgather(gradient.contiguous(), gathering)
        return None, gathered * factor


class Broadcast(torch.autograd.Function):
    """Back flows the averaged gradient at the root, and zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, call: Call, root: int, tensor: Tensor) -> Tensor:
        ctx.call, ctx.root = call, root
        (received,) = run(operations.broadcast(tensor, root, call)).wait()
        return received  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        (averaged,) = allreduce(_contiguous([gradient]), ctx.call.named("gradient"))
        return None, None, averaged if ctx.call.process_set.rank() == ctx.root else torch.zeros_like(averaged)


class Alltoall(torch.autograd.Function):
    """Back flow the gradients of the rows sent, each from the rank that received it."""

    @staticmethod
    def forward(ctx: Any, call: Call, splits: Any, tensor: Tensor) -> tuple[Tensor, Tensor]:
        handle = run(operations.alltoall(tensor, splits, call))
        (received,) = handle.wait()
        rows = torch.tensor(operations.received_rows(handle), dtype=torch.int32)
        ctx.call, ctx.rows = call, rows
        ctx.mark_non_differentiable(rows)
        return received, rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Gradients:
        sent_back, _ = alltoall(gradient.contiguous(), ctx.rows, ctx.call.named("gradient"))
        return None, None, sent_back


# The functions to call: through autograd where that has something to do ------------------------------------------------


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)  # type: ignore[no-untyped-call]


def _plain(function: type[torch.autograd.Function], *args: Any) -> Any:
    with torch.no_grad():
        return function.forward(_Nothing(), *args)


class _Nothing(FunctionCtx):
    """A context that nobody looks at again."""


def allreduce(tensors: Sequence[Tensor], call: Call) -> tuple[Tensor, ...]:
    """Reduced copies."""
    start = _apply if needs_gradient(tensors) else _plain
    return start(Allreduce, call, *tensors)  # type: ignore[no-any-return]


def allgather(tensor: Tensor, call: Call) -> Tensor:
    """The ranks' tensors along dimension 0."""
    start = _apply if needs_gradient([tensor]) else _plain
    return start(Allgather, call, tensor)  # type: ignore[no-any-return]
