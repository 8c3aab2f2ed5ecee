"""Collectives of plain tensors, whose results go straight into the caller's memory.

Plain tensors are dense, contiguous and of one dtype, as nearly all are: DDP's buckets, FSDP's shards. Training repeats
the same operations, and Python's own work costs more than most of them. So their requests are kept and, on this rank's
GPU, their buffers, and with them the backend's calls of NCCL. Requests serve again for tensors of the same shapes and
dtype, buffers for the same addresses too. Nothing here keeps a tensor alive, and each call looks at its own tensors:
memory that was freed is never used. On the CPU each call has arrays of its own, which keep the memory where it is. All
other tensors take the general path in `reducing` and `moving`, with equal requests.
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
from distrun.torch.tensors import STORAGE, plain_arrays
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
        self._kept: dict[Hashable, _Kept] = {}  # on the GPU
        self._requests: dict[Hashable, Request] = {}  # on the CPU
        _all.add(self)

    def forget(self) -> None:
        """Forget all operations: the world or the group is left."""
        self._kept.clear()
        self._requests.clear()

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
            return request_of(call, rows)

        return self._operation(call, outputs, inputs, inputs, request)

    def reducescatter(self, outputs: Tensors, inputs: Tensors, call: Call) -> Handle | None:
        """Return a reduction of tensors, of which each rank gets an equal part."""

        def request() -> Request | None:
            if not self._is_ordered or call.op not in (Sum, Average) or not _divides(inputs, outputs, self._size):
                return None
            return request_of(call, [tensor.view(self._size, -1) for tensor in inputs])

        return self._operation(call, outputs, inputs, inputs, request)

    def _operation(
        self, call: Call, outputs: Tensors, others: Tensors, inputs: Tensors, request: Callable[[], Request | None]
    ) -> Handle | None:
        """Return an operation on `inputs` and `outputs`. `others` are those among them that are not outputs. `request`
        checks the tensors of an operation that is new, and is None for those that are not plain."""
        tensors = (*outputs, *others)
        if not outputs or not _TYPES.issuperset(map(type, tensors)):
            return None
        if not cuda.is_on_gpu(outputs[0]):
            return self._on_cpu(call, outputs, others, inputs, request)
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
            made = request()
            if made is None or (others and not self._are_apart(outputs, others, may_be_own=True)):
                return None
            kept = self._keep(key, all_known(made) if call is self._gathering else made, outputs, inputs)
        return PlainHandle(
            world.engine(), kept.request, kept.inputs, kept.outputs, _check_received, tensors, arena=kept.arena
        )

    def _on_cpu(
        self, call: Call, outputs: Tensors, others: Tensors, inputs: Tensors, request: Callable[[], Request | None]
    ) -> Handle | None:
        results, sources = plain_arrays(outputs), plain_arrays(others) if others else ()
        if results is None or sources is None or (sources and sources[0].dtype is not results[0].dtype):
            return None
        key = (id(call), results[0].dtype, *map(_shape_of, results), *map(_shape_of, sources))
        known = self._requests.get(key)
        if known is None:
            if (known := request()) is None:
                return None
            _put(self._requests, key, known)
        if sources and not self._are_apart(outputs, others, may_be_own=call is self._gathering):
            return None
        results = [array if array.ndim == 1 else array.reshape(-1) for array in results]
        sources = results if inputs is outputs else [each if each.ndim == 1 else each.reshape(-1) for each in sources]
        return Handle(world.engine(), known, sources, results, _deliver, results)

    def _keep(self, key: Hashable, request: Request, outputs: Tensors, inputs: Tensors) -> _Kept:
        results = RepeatedBuffers(_buffers(outputs))
        sources = results if inputs is outputs else tuple(_buffers(inputs))
        kept = _Kept(request, sources, results, cuda.arena())
        _put(self._kept, key, kept)
        return kept

    def _are_apart(self, tensors: Tensors, others: Tensors, may_be_own: bool) -> bool:
        """Return whether no tensor shares memory with one of `others`, except, if `may_be_own`, a part with its whole
        where it is this rank's."""
        wholes, parts = (tensors, others) if tensors[0].numel() > others[0].numel() else (others, tensors)
        for place, whole in enumerate(wholes):
            begin, end = _range(whole)
            for other, part in enumerate(parts):
                first, last = _range(part)
                is_own = other == place and first == begin + self._rank * (last - first)
                if first < end and begin < last and not (is_own and may_be_own):
                    return False
        return True


def _put(kept: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    if len(kept) >= _LIMIT:
        del kept[next(iter(kept))]
    kept[key] = value


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
        raise _unequal(handle)
    return None


def _deliver(handle: Handle) -> None:
    """Make sure that the results on the CPU are in the caller's memory, the arrays in `given`."""
    for room, array in zip(handle.given, handle.outputs, strict=True):
        if array is room:
            continue
        if array.size != room.size:
            raise _unequal(handle)
        room[:] = array


def _unequal(handle: Handle) -> MismatchError:
    counts = list(chain(*handle.received))
    return MismatchError(f"{handle.title}: the ranks have sent {counts} elements: give equal tensors on all ranks")


def _forget_all() -> None:
    for each in _all:
        each.forget()


world.on_leaving(_forget_all)
