"""Operations that repeat, on plain tensors on this rank's GPU: dense, contiguous and of one dtype, as nearly all are.

Training repeats the same operations, and Python's own work costs more than most of them. So an operation's request and
buffers are kept, and with the buffers the backend keeps its plan. They serve again if the call, and the tensors'
addresses, shapes and dtype are the same. The addresses are those of the caller's tensors at the time of each call, and
nothing here keeps a tensor alive: memory that was freed is never used. Results that are not in place lie in new memory
each time, which the plan is told. All other tensors take the general path in `operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple, final

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


@final
class Repeated(NamedTuple):
    """A kept operation."""

    call: Call
    dtype: torch.dtype
    shapes: list[torch.Size]
    pointers: list[int]
    request: Request
    buffers: RepeatedBuffers
    arena: cuda.TorchArena

    def handle(
        self,
        tensors: Sequence[Tensor],
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer],
        collect: Callable[[Handle], Any],
    ) -> Handle:
        """Return a handle that is not yet started (see `Handle`), and whose `given` is `tensors`."""
        return DeviceHandle(world.engine(), self.request, inputs, outputs, collect, tensors, arena=self.arena)

    def in_place(self, tensors: Sequence[Tensor], collect: Callable[[Handle], Any]) -> Handle:
        """Return the handle of an allreduce of `tensors` in their own memory."""
        return self.handle(tensors, self.buffers, self.buffers, collect)

    def into_new(self, tensors: Sequence[Tensor]) -> Handle:
        """Return the handle of an allreduce whose results are new tensors like `tensors`: views of one buffer."""
        if len(tensors) == 1:
            whole = cuda.new(tensors[0], self.shapes[0])
        else:
            whole = cuda.new(tensors[0], (sum(map(_size_of, self.buffers)),))
        return self.handle(tensors, self.buffers, (buffer(whole),), new)


_kept: dict[tuple[str, bool, str | None, int], Repeated] = {}
"""The latest operation of each kind, in place or not, name and number of tensors."""
world.on_leaving(_kept.clear)

_TYPES = {Tensor, torch.nn.Parameter}
_dtype_of, _shape_of, _size_of = attrgetter("dtype"), attrgetter("shape"), attrgetter("size")


def repeated(tensors: Sequence[Tensor], call: Call, in_place: bool = False) -> Repeated | None:
    """Return the kept operation on tensors, which is made if it is new, or None if they or the call are not plain.

    Plain calls are of all ranks, and unscaled. Reductions among them form sums or averages.

    Args:
        tensors: at least one, the first on a GPU.
        in_place: whether the results are to lie in their memory.

    Raises:
        UsageError: a tensor cannot travel, or an argument is impossible (see `Call.request`).
    """
    kind, name, op, _, prescale, postscale, process_set, *_ = call
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
    known = _kept.get((kind, in_place, name, len(tensors)))
    if (
        known is not None
        and known.pointers == pointers
        and known.shapes == shapes
        and known.dtype is dtype
        and known.call == call
    ):
        return known
    if not all(map(cuda.is_on_gpu, tensors)) or (kind in MOVES_ROWS and 0 in pointers):  # 0: without elements
        return None
    request = request_of(call, tensors)  # checks each tensor's device as well
    buffers = RepeatedBuffers(
        [DeviceBuffer(at, tensor.numel(), STORAGE[dtype]) for at, tensor in zip(pointers, tensors, strict=True)]
    )
    if len(_kept) >= REQUESTS:
        del _kept[next(iter(_kept))]
    known = _kept[kind, in_place, name, len(tensors)] = Repeated(
        call, dtype, shapes, pointers, request, buffers, cuda.arena()
    )
    return known


def new(handle: Handle) -> list[Tensor]:
    """Return the results of an operation with one new buffer."""
    whole: Tensor = handle.outputs[0].owner  # type: ignore[attr-defined]
    if len(handle.given) == 1:
        return [whole]
    parts = whole.split_with_sizes(list(map(_size_of, handle.inputs)))
    return list(map(Tensor.view, parts, handle.request.shapes))
