"""Reducing gradients on the torch backend: in place, in the memory of `variable.value.grad`, on the CPU or the GPU.

A variable may have a gradient on some ranks only, if the path through the model depends on the data. So flags travel
along that tell which rank has one. On the other ranks the gradient counts as zero, and a variable that no rank used
keeps None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.graphs import residuals as residuals
from distrun.graphs.prepared import prepare
from distrun.runtime.collectives.call import Call
from distrun.runtime.world import world
from distrun.tensor_fusion.low_rank import rank_of
from distrun.torch import cuda, operations
from distrun.torch.tensors import dtype_name, flat, is_flat


@torch.no_grad()
def reduce(
    gradients: Sequence[Tensor | None], variables: Sequence[Any], collective: Call, sparse_as_dense: bool
) -> list[Tensor | None]:
    """Return the reduced gradients. Sparse ones, which Keras does not make by itself, are reduced as dense ones."""
    # Accumulated gradients may be fewer than the variables. None of them is missing then, and none is a `.grad`.
    tensors = [_own(gradient, variable) for gradient, variable in zip(gradients, variables, strict=False)]
    flags = torch.tensor([gradient is not None for gradient in gradients], device=cuda.CPU).to(tensors[0].dtype)
    if cuda.kind(tensors[0]) == cuda.CPU:
        _on_host([*tensors, flags], collective)
    elif _are_losses_kept(collective):
        _through_host(tensors, flags, collective)
    else:
        _on_gpu(tensors, flags, collective)
    return [tensor if flag else None for tensor, flag in zip(tensors, flags.tolist(), strict=True)]


def _on_host(tensors: Sequence[Tensor], collective: Call) -> None:
    arrays: list[Any] = [flat(tensor) for tensor in tensors]
    dtypes = tuple([dtype_name(tensor) for tensor in tensors])
    prepare(collective, dtypes, tuple([tuple(tensor.shape) for tensor in tensors])).reduce(arrays, arrays)


def _on_gpu(tensors: Sequence[Tensor], flags: Tensor, collective: Call) -> None:
    """The flags travel through host memory, so that the host knows them without waiting for the GPU."""
    reduced = operations.grouped(tensors, collective.named("gpu"), operations.allreduce_in_place, operations.submit)
    _on_host([flags], collective)
    reduced.wait()


def _are_losses_kept(collective: Call) -> bool:
    """Return whether a call has residuals: with int4 only if there are several hosts, with PowerSGD always."""
    if not residuals.are_kept_of(collective):
        return False
    topology = world.topology()
    return rank_of(collective.wire) > 0 or topology.local_size < topology.size


def _through_host(tensors: Sequence[Tensor], flags: Tensor, collective: Call) -> None:
    """Reduce GPU tensors through host memory, where the residuals are kept."""
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, device=cuda.CPU).copy_(tensor) for tensor in tensors]
    _on_host([*copies, flags], collective)
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)


def _own(gradient: Tensor | None, variable: Any) -> Tensor:
    """Return a contiguous tensor that may be overwritten: the variable's own `.grad`, or a copy, since any other tensor
    may share its memory."""
    value = variable.value
    if gradient is None:
        return torch.zeros_like(value, memory_format=torch.contiguous_format)
    if gradient.is_sparse:
        return gradient.to_dense()
    if gradient is value.grad and is_flat(gradient):
        return gradient
    return gradient.detach().clone(memory_format=torch.contiguous_format)
