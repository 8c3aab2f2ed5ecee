"""Allreduces in place of plain tensors on this rank's GPU: dense, contiguous and of one dtype, as nearly all are.

Training repeats the same operations, and Python's own work costs more than most of them. So a group's request and
buffers are kept, and with the buffers the backend keeps its plan. They serve again if name, tensors' addresses, shapes
and dtype are the same. The addresses are those of the caller's tensors at the time of each call, and nothing here keeps
a tensor alive: memory that was freed is never used. All other tensors take the general path in `operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distrun.runtime.collectives.call import reduction_call
from distrun.runtime.collectives.plain import Terms
from distrun.runtime.gpu.buffers import DeviceBuffer, RepeatedBuffers
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.operations.request import Request
from distrun.runtime.process_sets.process_set import global_process_set
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.operations import request_of
from distrun.torch.tensors import STORAGE


class _Group(NamedTuple):
    """Tensors that were reduced together before."""

    terms: Terms
    dtype: torch.dtype
    shapes: list[torch.Size]
    pointers: list[int]
    request: Request
    buffers: RepeatedBuffers
    arena: cuda.TorchArena


_LIMIT = 1 << 13
_groups: dict[tuple[str | None, int], _Group] = {}
"""The latest group of each name and number of tensors."""
world.on_leaving(_groups.clear)

_TYPES = {Tensor, torch.nn.Parameter}
_dtype_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


def in_place(tensors: Sequence[Tensor], terms: Terms, collect: Callable[[Handle], Any]) -> Handle | None:
    """Return one allreduce of tensors in their own memory, not started yet, or None if they are not plain.

    Args:
        tensors: at least one, the first on a GPU.
        terms: the terms of the call. Only plain ones are kept: a sum or an average over all ranks, unscaled.
        collect: makes the result of the handle, whose `given` is `tensors`.

    Raises:
        UsageError: a tensor cannot travel, or an argument is impossible (see `Call.request`).
    """
    name, op, prescale, postscale, process_set = terms
    if not (op is Average or op is Sum) or process_set is not global_process_set or not prescale == 1.0 == postscale:
        return None
    dtype = tensors[0].dtype
    if not (_TYPES.issuperset(map(type, tensors)) and all(map(is_, map(_dtype_of, tensors), repeat(dtype)))):
        return None
    try:
        pointers = list(map(Tensor.data_ptr, tensors))
        is_plain = all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors))
    except RuntimeError:  # sparse, for example
        return None
    if not is_plain or dtype.is_complex or not isinstance(name, str | None):
        return None
    shapes = list(map(_shape_of, tensors))
    group = _groups.get((name, len(tensors)))
    if (
        group is None
        or group.pointers != pointers
        or group.shapes != shapes
        or group.dtype is not dtype
        or group.terms != terms
    ):
        if not all(map(cuda.is_on_gpu, tensors)):
            return None
        group = _keep(tensors, terms, shapes, pointers)
    buffers = group.buffers
    return DeviceHandle(world.engine(), group.request, buffers, buffers, collect, tensors, arena=group.arena)


def _keep(tensors: Sequence[Tensor], terms: Terms, shapes: list[torch.Size], pointers: list[int]) -> _Group:
    request = request_of(reduction_call("allreduce", *terms), tensors)  # checks each tensor's device as well
    dtype = tensors[0].dtype
    storage = STORAGE[dtype]
    buffers = RepeatedBuffers(
        [DeviceBuffer(pointer, tensor.numel(), storage) for pointer, tensor in zip(pointers, tensors, strict=True)]
    )
    if len(_groups) >= _LIMIT:
        del _groups[next(iter(_groups))]
    group = _groups[terms[0], len(tensors)] = _Group(terms, dtype, shapes, pointers, request, buffers, cuda.arena())
    return group
