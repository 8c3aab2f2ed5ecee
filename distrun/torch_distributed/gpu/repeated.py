"""Collectives of plain tensors on this rank's GPU, whose results go straight into the caller's memory.

Plain tensors are dense, contiguous and of one dtype, as nearly all are: DDP's buckets, FSDP's shards. Training repeats
the same operations, and Python's own work costs more than most of them. So their requests and buffers are kept, and
with the buffers the backend keeps its calls of NCCL. They serve again for tensors of the same addresses, shapes and
dtype. Nothing here keeps a tensor alive, and each call looks at its own tensors: memory that was freed is never used.
All other tensors take the general path in `reducing` and `moving`, with equal requests.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distrun.errors import MismatchError
from distrun.runtime.collectives.call import Call, broadcast_call, moving_call
from distrun.runtime.gpu.buffers import DeviceBuffer, RepeatedBuffers
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.operations.request import Request
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.operations import request_of
from distrun.torch.tensors import STORAGE
from distrun.torch_distributed.members import Members

Tensors = Sequence[Tensor]

_LIMIT = 1 << 13
_TYPES = {Tensor, torch.nn.Parameter}
_dtype_of, _shape_of, _device_of = attrgetter("dtype"), attrgetter("shape"), attrgetter("device")
_all: weakref.WeakSet[Repeated] = weakref.WeakSet()


class PlainHandle(DeviceHandle):
    """An operation whose results are written into the caller's memory: nothing is left to do when it is done."""


class _Kept(NamedTuple):
    """The parts of an operation that do not depend on its tensors' values."""

    request: Request
    inputs: Sequence[DeviceBuffer]
    outputs: RepeatedBuffers
    arena: cuda.TorchArena


class Repeated:
    """The operations of one process group that may repeat. Each method returns one that is not started yet, or None if
    its tensors are not plain."""

    def __init__(self, members: Members) -> None:
        self._ranks, self._set = members.ranks, members.process_set
        self._size = len(members.ranks)
        self._is_ordered = members.order is None
        self._rank = members.process_set.rank()
        self._gathering = moving_call("allgather", None, members.process_set)
        self._broadcasts: dict[int, Call] = {}
        self._kept: dict[Hashable, _Kept] = {}
        _all.add(self)

    def forget(self) -> None:
        """Forget all operations: the world or the group is left."""
        self._kept.clear()

    def allreduce(self, tensors: Tensors, call: Call) -> Handle | None:
        """Return an allreduce of tensors in their own memory."""
        return self._operation(call, tensors, (), tensors, lambda: request_of(call, tensors))

    def broadcast(self, tensor: Tensor, root: int) -> Handle | None:
        """Return a broadcast of the tensor of the rank `root` of the group."""
        call = self._broadcasts.get(root)
        if call is None:
            call = self._broadcasts[root] = broadcast_call(None, self._ranks[root], self._set)
        return self._operation(call, (tensor,), (), (), lambda: request_of(call, (tensor,)))

    def allgather(self, outputs: Tensors, inputs: Tensors) -> Handle | None:
        """Return an allgather of tensors, each into one tensor with as many elements for each rank."""
        call = self._gathering

        def request() -> Request | None:
            if not self._is_ordered or not _divides(outputs, inputs, self._size):
                return None
            rows = [tensor.view(1, -1) for tensor in inputs]
            return all_known(request_of(call, rows)) if self._are_apart(outputs, inputs) else None

        return self._operation(call, outputs, inputs, inputs, request)

    def reducescatter(self, outputs: Tensors, inputs: Tensors, call: Call) -> Handle | None:
        """Return a reduction of tensors, of which each rank gets an equal part."""

        def request() -> Request | None:
            if not self._is_ordered or call.op not in (Sum, Average) or not _divides(inputs, outputs, self._size):
                return None
            rows = [tensor.view(self._size, -1) for tensor in inputs]
            return request_of(call, rows) if self._are_apart(inputs, outputs) else None

        return self._operation(call, outputs, inputs, inputs, request)

    def _operation(
        self, call: Call, outputs: Tensors, others: Tensors, inputs: Tensors, request: Callable[[], Request | None]
    ) -> Handle | None:
        """Return an operation on `inputs` and `outputs`. `others` are those among them that are not outputs. `request`
        checks the tensors of an operation that is new, and is None for those that are not plain."""
        if not outputs or not cuda.is_on_gpu(outputs[0]):
            return None
        tensors = (*outputs, *others)
        if not _TYPES.issuperset(map(type, tensors)):
            return None
        try:
            # `call` is one object for each kind and operator, that is kept as long as this.
            key = (id(call), *map(Tensor.data_ptr, tensors), *map(_shape_of, tensors), *map(_dtype_of, tensors))
            is_plain = all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors))
        except RuntimeError:  # sparse, for example
            return None
        if not is_plain:
            return None
        kept = self._kept.get(key)
        if kept is None:
            dtype = outputs[0].dtype
            if dtype.is_complex or dtype not in STORAGE or any(tensor.dtype is not dtype for tensor in tensors):
                return None
            if not all(map(cuda.is_on_gpu, tensors)) or len(set(map(_device_of, tensors))) > 1:
                return None
            if (made := request()) is None:
                return None
            kept = self._keep(key, made, outputs, inputs)
        return PlainHandle(
            world.engine(), kept.request, kept.inputs, kept.outputs, _check_received, tensors, arena=kept.arena
        )

    def _keep(self, key: Hashable, request: Request, outputs: Tensors, inputs: Tensors) -> _Kept:
        results = RepeatedBuffers(_buffers(outputs))
        sources = results if inputs is outputs else tuple(_buffers(inputs))
        if len(self._kept) >= _LIMIT:
            del self._kept[next(iter(self._kept))]
        kept = self._kept[key] = _Kept(request, sources, results, cuda.arena())
        return kept

    def _are_apart(self, wholes: Tensors, parts: Tensors) -> bool:
        """Return whether no part lies in a whole, except its own where it is this rank's."""
        for place, whole in enumerate(wholes):
            begin, end = _range(whole)
            for other, part in enumerate(parts):
                first, last = _range(part)
                is_own = other == place and first == begin + self._rank * (last - first)
                if first < end and begin < last and not is_own:
                    return False
        return True


def _buffers(tensors: Tensors) -> Iterator[DeviceBuffer]:
    return (DeviceBuffer(tensor.data_ptr(), tensor.numel(), STORAGE[tensor.dtype]) for tensor in tensors)


def _range(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses where a tensor begins and ends."""
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.itemsize


def _divides(wholes: Tensors, parts: Tensors, size: int) -> bool:
    """Return whether each whole has `size` times as many elements as its part, which has some."""
    return len(wholes) == len(parts) and all(
        part.numel() and whole.numel() == size * part.numel() for whole, part in zip(wholes, parts, strict=True)
    )


def all_known(request: Request) -> Request:
    """Return the request of an allgather with one row of each rank: the ranks agree about its extents, and need not
    exchange them."""
    return request._replace(shapes=tuple((1, *shape[1:]) for shape in request.shapes))


def _check_received(handle: Handle) -> Any:
    """Raise a MismatchError unless the results are in the caller's memory: ranks that have joined send nothing."""
    outputs: object = handle.outputs
    if not isinstance(outputs, RepeatedBuffers):
        counts = list(chain(*handle.received))
        raise MismatchError(f"{handle.title}: the ranks have sent {counts} elements: give equal tensors on all ranks")
    return None


def _forget_all() -> None:
    for each in _all:
        each.forget()


world.on_leaving(_forget_all)
