"""Operations that repeat, on plain tensors: dense, contiguous and of one dtype, as nearly all are.

Training repeats the same operations, and Python's own work costs more than most of them. So an operation's request and
buffers are kept, and with the buffers the backend keeps its plan. They serve again if the call, and the tensors'
addresses, shapes and dtype are the same. The addresses are those of the caller's tensors at the time of each call, and
nothing here keeps a tensor alive: memory that was freed is never used. Results that are not in place lie in new memory
each time, which the plan is told. All other tensors take the general path in `operations`.

On the CPU this is for groups whose caller waits at once. `Tensor.numpy` also keeps a tensor's memory where it is, which
matters where the caller may go on meanwhile, and it takes less time than this for a single tensor. A group is kept when
it is seen for the second time, since tensors that never come to the same place again would only be looked at for
nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from operator import attrgetter
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from distrun.contract.settings import REQUESTS
from distrun.runtime.collectives.call import MOVES_ROWS, Call
from distrun.runtime.gpu.buffers import DeviceBuffer, RepeatedBuffers
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.operations.request import Request
from distrun.runtime.process_sets.process_set import global_process_set
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.tensors import STORAGE, request_of


def buffer(tensor: Tensor) -> DeviceBuffer:
    """Return the memory of a contiguous tensor."""
    return DeviceBuffer(tensor.data_ptr(), tensor.numel(), STORAGE[tensor.dtype], tensor)


Array = np.ndarray[Any, np.dtype[Any]]


@final
class Repeated(NamedTuple):
    """A kept operation."""

    call: Call
    dtype: torch.dtype
    shapes: list[torch.Size]
    pointers: list[int]
    request: Request
    buffers: RepeatedBuffers | tuple[Array, ...]
    arena: cuda.TorchArena | None
    """None on the CPU."""

    def handle(
        self,
        tensors: Sequence[Tensor],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        collect: Callable[[Handle], Any],
    ) -> Handle:
        """Return a handle that is not yet started (see `Handle`), and whose `given` is `tensors`."""
        if self.arena is None:
            return Handle(world.engine(), self.request, inputs, outputs, collect, tensors)
        return DeviceHandle(world.engine(), self.request, inputs, outputs, collect, tensors, arena=self.arena)

    def in_place(self, tensors: Sequence[Tensor], collect: Callable[[Handle], Any]) -> Handle:
        """Return the handle of an allreduce of `tensors` in their own memory."""
        return self.handle(tensors, self.buffers, self.buffers, collect)

    def into_new(self, tensors: Sequence[Tensor]) -> Handle:
        """Return the handle of an allreduce whose results are new tensors like `tensors`, on the GPU: views of one
        buffer."""
        if len(tensors) == 1:
            whole = cuda.new(tensors[0], self.shapes[0])
        else:
            whole = cuda.new(tensors[0], (sum(map(_size_of, self.buffers)),))
        return self.handle(tensors, self.buffers, (buffer(whole),), new)


_kept: dict[tuple[str, bool, str | None, int], Repeated | list[int]] = {}
"""The latest operation of each kind, in place or not, name and number of tensors. On the CPU, if it has not repeated
itself yet, the addresses alone."""
world.on_leaving(_kept.clear)

_TYPES = {Tensor, torch.nn.Parameter}
_dtype_of, _shape_of, _size_of = attrgetter("dtype"), attrgetter("shape"), attrgetter("size")


def recall(tensors: Sequence[Tensor], call: Call, in_place: bool = False, is_on_gpu: bool = True) -> Repeated | None:
    """Return the kept operation on tensors, which is made if it is new, or None if they or the call are not plain.

    Plain calls are of all ranks, and unscaled. Reductions among them form sums or averages.

    Args:
        tensors: at least one.
        in_place: whether the results are to lie in their memory.
        is_on_gpu: whether the first tensor is on this rank's GPU.

    Raises:
        UsageError: a tensor cannot travel, or an argument is impossible (see `Call.request`).
    """
    kind, name, op, _, prescale, postscale, process_set, *_ = call
    if not (op is Average or op is Sum) or process_set is not global_process_set or not prescale == 1.0 == postscale:
        return None
    if not ((name is None or type(name) is str) and {*map(type, tensors)} <= _TYPES):
        return None
    key, dtype = (kind, in_place, name, len(tensors)), tensors[0].dtype
    known = _kept.get(key)
    try:
        pointers = list(map(Tensor.data_ptr, tensors))
        if not is_on_gpu and pointers != (known.pointers if type(known) is Repeated else known):
            _keep(key, pointers)
            return None
        is_plain = all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors))
    except RuntimeError:  # sparse, for example
        return None
    if not is_plain or dtype.is_complex or {*map(_dtype_of, tensors)} != {dtype}:
        return None
    shapes = list(map(_shape_of, tensors))
    if (
        type(known) is Repeated
        and known.pointers == pointers
        and known.shapes == shapes
        and known.dtype is dtype
        and known.call == call
    ):
        return known
    if len(set(map(cuda.kind, tensors))) > 1 or (kind in MOVES_ROWS and 0 in pointers):  # 0: without elements
        return None
    request = request_of(call, tensors)  # checks each tensor's device as well
    memory = zip(pointers, map(Tensor.numel, tensors), repeat(STORAGE[dtype]), strict=False)
    buffers: RepeatedBuffers | tuple[Array, ...]
    if is_on_gpu:
        buffers, arena = RepeatedBuffers(starmap(DeviceBuffer, memory)), cuda.arena()
    else:
        buffers, arena = tuple(starmap(_array, memory)), None
    known = Repeated(call, dtype, shapes, pointers, request, buffers, arena)
    _keep(key, known)
    return known


def _keep(key: tuple[str, bool, str | None, int], operation: Repeated | list[int]) -> None:
    if len(_kept) >= REQUESTS and key not in _kept:
        del _kept[next(iter(_kept))]
    _kept[key] = operation


def _array(pointer: int, size: int, dtype: np.dtype[Any]) -> Array:
    """Return the flat array at an address, which keeps nothing alive."""
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(pointer)
    array: Array = np.ndarray((size,), dtype, memoryview(memory))
    return array


def new(handle: Handle) -> list[Tensor]:
    """Return the results of an operation with one new buffer."""
    whole: Tensor = handle.outputs[0].owner  # type: ignore[attr-defined]
    if len(handle.given) == 1:
        return [whole]
    parts = whole.split_with_sizes(list(map(_size_of, handle.inputs)))
    return list(map(Tensor.view, parts, handle.request.shapes))
