"""The differentiable collectives, with the gradient of each.

Each rank has its own loss, and a gradient is that of the sum of all ranks' losses. Exceptions are allgather and
broadcast, which average over the ranks where the derivative is a sum, as in Horovod. A wrapped optimizer averages in
any case. For reducescatter see `reducescatter_gradient_factor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call, received_rows, reducescatter_gradient_factor
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.world import world
from distrun.torch import operations
from distrun.torch.operations import run

Gradients = tuple[Tensor | None, ...]


def _contiguous(gradients: Sequence[Tensor]) -> list[Tensor]:
    return [gradient.contiguous() for gradient in gradients]


def _averaging(call: Call) -> Call:
    """Return the allreduce that averages the gradients of another call."""
    return call.named("gradient")._replace(kind="allreduce", op=Average, root=-1)


class Allreduce(torch.autograd.Function):
    """An allreduce. The gradient is the allreduce of the ranks' gradients, with the same op and factors."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tuple(operations.grouped(tensors, call, operations.allreduce, run).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        call: Call = ctx.call
        if call.op not in (Average, Sum):
            raise UsageError(f"allreduce with op={call.op} has no gradient here: reduce tensor.detach() instead")
        return None, *apply(Allreduce, call.named("gradient"), *_contiguous(gradients))


class Allgather(torch.autograd.Function):
    """An allgather. The gradient is this rank's rows of the average of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        gathered = operations.grouped(tensors, call, operations.allgather_with_rows, run).wait()
        rank = call.process_set.rank()
        ctx.call = call
        ctx.parts = [(sum(rows[:rank]), tensor.shape[0]) for tensor, (_, rows) in zip(tensors, gathered, strict=True)]
        return tuple([tensor for tensor, _ in gathered])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        averaged = apply(Allreduce, _averaging(ctx.call), *_contiguous(gradients))
        return None, *[whole.narrow(0, start, rows) for whole, (start, rows) in zip(averaged, ctx.parts, strict=True)]


class Reducescatter(torch.autograd.Function):
    """A reducescatter. The gradient is the concatenation of the ranks' gradients, times
    `reducescatter_gradient_factor`."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tuple(operations.grouped(tensors, call, operations.move_rows, run).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        call: Call = ctx.call
        factor = reducescatter_gradient_factor(call)
        gather_call = Call("allgather", call.name, process_set=call.process_set).named("gradient")
        return None, *[whole * factor for whole in apply(Allgather, gather_call, *_contiguous(gradients))]


class Broadcast(torch.autograd.Function):
    """A broadcast. The gradient is the average of the ranks' gradients on the root, and zero on other ranks."""

    @staticmethod
    def forward(ctx: Any, call: Call, tensor: Tensor) -> Tensor:
        ctx.call = call
        (received,) = run(operations.broadcast(tensor, call)).wait()
        return received  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        call: Call = ctx.call
        (averaged,) = apply(Allreduce, _averaging(call), gradient.contiguous())
        return None, averaged if world.rank() == call.root else torch.zeros_like(averaged)


class Alltoall(torch.autograd.Function):
    """An alltoall. The gradient of each row sent comes back from the rank that received the row."""

    @staticmethod
    def forward(ctx: Any, call: Call, splits: Any, tensor: Tensor) -> tuple[Tensor, Tensor]:
        handle = run(operations.alltoall(tensor, splits, call))
        (received,) = handle.wait()
        rows = torch.tensor(received_rows(handle), dtype=torch.int32, device="cpu")
        ctx.call, ctx.rows = call, rows
        ctx.mark_non_differentiable(rows)
        return received, rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Gradients:
        sent_back, _ = apply(Alltoall, ctx.call.named("gradient"), ctx.rows, gradient.contiguous())
        return None, None, sent_back


# Their use ------------------------------------------------------------------------------------------------------------


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Call one of the functions above with `args`, through autograd only if an argument requires a gradient, because
    autograd costs more than a small allreduce."""
    if torch.is_grad_enabled() and any(map(getattr, args, repeat("requires_grad"), repeat(False))):
        return function.apply(*args)  # type: ignore[no-untyped-call]
    return function.forward(FunctionCtx(), *args)
