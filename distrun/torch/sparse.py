"""Allreduce of sparse tensors: gathers their indices and values, and adds them up on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from distrun.contract.settings import current
from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call, reduction_call
from distrun.runtime.operations.handle import AnyHandle, Handle, HandleGroup
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.torch import operations

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: Tensor, name: str | None = None, op: ReduceOp | None = None, process_set: ProcessSet = global_process_set
) -> SparseHandle:
    """Start an allreduce of a sparse tensor without waiting for it.

    Args:
        tensor: of layout `torch.sparse_coo`, hybrid or not, coalesced or not, with any number of elements. Shape, dtype
            and number of sparse dimensions must be the same on all ranks.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        op: `Average` (if None) or `Sum`.
        process_set: the ranks that take part.

    Returns:
        A handle. As in Horovod it can also be called, without arguments: it waits and returns the coalesced result.

    Raises:
        UsageError: an argument is impossible.
    """
    call = reduction_call("allreduce", name, Average if op is None else op, 1.0, 1.0, process_set)
    return start_sparse(tensor, call, operations.submit)


class SparseHandle(HandleGroup):
    """The handle of an allreduce of a sparse tensor."""

    def __init__(self, gathered: AnyHandle, shape: torch.Size, call: Call) -> None:
        """`gathered` is the handle of the allgathers that `start_sparse` starts."""
        super().__init__([(gathered, range(3))])
        self._shape = shape
        self._call = call
        self._result: Tensor | None = None

    @torch.no_grad()
    def wait(self) -> Any:
        """Wait until the operation is done, and return its result. Raises as `Handle.wait` does."""
        if self._result is None:
            indices, values, marks = super().wait()
            ranks = self._call.process_set.size() if current().horovod else len(marks)
            self._result = self._reduced(indices.t(), values, ranks)
        return self._result

    __call__ = wait

    def _reduced(self, indices: Tensor, values: Tensor, ranks: int) -> Tensor:
        """`ranks`: the number that an average divides by: the ranks that have not joined, or in Horovod's mode all."""
        dtype, call = values.dtype, self._call
        if dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        total = torch.sparse_coo_tensor(indices, values, self._shape, check_invariants=False).coalesce()
        factor, size = call.prescale * call.postscale, ranks if call.op is Average else 1
        values = total.values()
        if values.is_floating_point() or values.is_complex():
            values *= factor / size
        elif size != 1:
            values = values.div_(size, rounding_mode="trunc")
        return torch.sparse_coo_tensor(
            total.indices(), values.to(dtype), self._shape, is_coalesced=True, check_invariants=False
        )


@torch.no_grad()
def start_sparse(tensor: Tensor, call: Call, start: Callable[[Handle], Handle]) -> SparseHandle:
    """Start an allreduce of a sparse tensor, as a grouped allgather of its indices and values.

    Raises:
        UsageError: the operator is not Average or Sum, or the layout is not `torch.sparse_coo`.
    """
    if call.op not in (Average, Sum):
        raise UsageError(f"an allreduce of sparse tensors with op={call.op} is not offered: use Average or Sum")
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        what = f"one of layout {tensor.layout}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise UsageError(f"a sparse tensor of layout torch.sparse_coo is needed, not {what}: use .to_sparse()")
    whole = tensor.detach().coalesce()
    indices = whole.indices().t().contiguous()
    # Without elements: its row counts the ranks that have not joined, and makes the ranks compare their shapes.
    mark = indices.new_empty((1, 0, *tensor.shape))
    gather_call = call._replace(kind="allgather", wire="").named("sparse")
    tensors = [indices, whole.values(), mark]
    return SparseHandle(operations.grouped(tensors, gather_call, operations.move_rows, start), tensor.shape, call)
