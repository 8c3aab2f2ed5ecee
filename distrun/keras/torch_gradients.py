"""Reducing gradients on the torch backend: those in `variable.value.grad` in their own memory, on the CPU or on the
GPU.

A variable may have a gradient on some ranks only, where the way through the model depends on the data. So flags travel
along, which say who has one: the gradient of the others counts as zero, and a variable nobody used keeps None.
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
    """The reduced gradients. Sparse ones, which Keras does not make by itself, are reduced as dense ones."""
    # Accumulated gradients may be fewer than the variables; they are all there, and none is a variable's own.
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
    """Return whether something is lost that is to be made up for: of int4 only where there are several hosts."""
    if not residuals.are_kept_of(collective):
        return False
    topology = world.topology()
    return rank_of(collective.wire) > 0 or topology.local_size < topology.size


def _through_host(tensors: Sequence[Tensor], flags: Tensor, collective: Call) -> None:
    """The losses are kept in host memory, so the gradients travel through it."""
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, device=cuda.CPU).copy_(tensor) for tensor in tensors]
    _on_host([*copies, flags], collective)
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.copy_(copy)


def _own(gradient: Tensor | None, variable: Any) -> Tensor:
    """A contiguous tensor to be written to: others than the variable's own gradient may share their memory."""
    value = variable.value
    if gradient is None:
        return torch.zeros_like(value, memory_format=torch.contiguous_format)
    if gradient.is_sparse:
        return gradient.to_dense()
    if gradient is value.grad and is_flat(gradient):
        return gradient
    return gradient.detach().clone(memory_format=torch.contiguous_format)
