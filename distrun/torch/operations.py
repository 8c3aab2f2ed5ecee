"""The operations on torch tensors, prepared: each function checks its arguments and returns a handle not yet submitted.

A handle's result is the list of the resulting tensors. `run` and `submit` start it, for those who wait and those who do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.collectives.copies import rows_per_rank
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.handle import AnyHandle, Handle, HandleGroup, outputs_of
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum, check_op
from distrun.runtime.operations.request import Request
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.torch import cuda
from distrun.torch import tensors as storage


@dataclass(frozen=True)
class Call:
    """What the arguments of a collective call say besides the tensors."""

    name: str | None = None
    process_set: ProcessSet = global_process_set
    op: ReduceOp = Average
    prescale: float = 1.0
    postscale: float = 1.0
    wire: str = ""

    def named(self, suffix: str) -> Call:
        """The same for an operation that goes with this one; one without a name stays so."""
        return replace(self, name=self.name and f"{self.name}.{suffix}")

    def request(self, kind: str, tensors: Sequence[Tensor], free_rows: bool = False, root: int = -1) -> Request:
        """The request for tensors of one dtype on one device. `free_rows`: ranks may differ in the first dimension."""
        dtypes = [storage.dtype_name(tensor) for tensor in tensors]
        if free_rows or kind == "reducescatter":
            for tensor in tensors:
                _check_rows(tensor, kind)
        shapes = tuple([(-1, *tensor.shape[1:]) if free_rows else tuple(tensor.shape) for tensor in tensors])
        return Request(
            kind,
            self.name,
            dtypes[0],
            shapes,
            self.op,
            root,
            float(self.prescale),
            float(self.postscale),
            self.process_set.process_set_id,
            cuda.kind(tensors[0]),
            self.wire,
        )


def _check_rows(tensor: Tensor, kind: str) -> None:
    if tensor.dim() == 0:
        raise UsageError(f"{kind} divides the first dimension, and a 0-dimensional tensor has none: use .reshape(1)")


def prepare(
    request: Request,
    inputs: Sequence[storage.Flat],
    outputs: Sequence[storage.Flat] = (),
    collect: Callable[[Handle], Any] = outputs_of,
    given: Any = None,
) -> Handle:
    """A handle for the device that the request names; see `Handle`."""
    engine = world.engine()
    if request.device == cuda.CPU:
        return Handle(engine, request, inputs, outputs, collect, given)  # type: ignore[arg-type]
    return DeviceHandle(engine, request, inputs, outputs, collect, given, arena=cuda.arena())  # type: ignore[arg-type]


def run(handle: Handle) -> Handle:
    """Start an operation that the caller waits for at once."""
    return handle.engine.run(handle)


def submit(handle: Handle) -> Handle:
    """Start an operation and return at once."""
    return handle.engine.submit(handle)


# What comes out: `given` is the caller's tensors -----------------------------------------------------------------------


def _new(handle: Handle) -> list[Tensor]:
    """The results of an allreduce or a broadcast, which lie in one buffer."""
    whole = storage.tensor_of(handle.outputs[0], handle.given[0].dtype, (-1,))
    shapes = handle.request.shapes
    if len(shapes) == 1:
        return [whole.view(shapes[0])]
    parts = torch.split(whole, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _new_rows(handle: Handle) -> list[Tensor]:
    """The results of an operation that decides about the first dimension."""
    dtype = handle.given[0].dtype
    return [
        storage.rows_of(array, dtype, shape) for array, shape in zip(handle.outputs, handle.request.shapes, strict=True)
    ]


def _new_with_rows(handle: Handle) -> list[tuple[Tensor, list[int]]]:
    return [(tensor, received_rows(handle, index)) for index, tensor in enumerate(_new_rows(handle))]


def _in_place(handle: Handle) -> list[Tensor]:
    for tensor, array in zip(handle.given, handle.outputs, strict=True):
        if not storage.is_flat(tensor):  # it was copied, so it is copied back
            tensor.detach().copy_(storage.tensor_of(array, tensor.dtype, tensor.shape))
    return list(handle.given)


# The operations --------------------------------------------------------------------------------------------------------


def allreduce(tensors: Sequence[Tensor], call: Call, in_place: bool = False) -> Handle:
    """Reduce each of `tensors`, all of one dtype."""
    request = call.request("allreduce", tensors)
    check_op(call.op, request.dtype)
    arrays = [storage.flat(tensor) for tensor in tensors]
    if in_place:
        return prepare(request, arrays, arrays, _in_place, tensors)
    return prepare(request, arrays, [storage.room_for(arrays)], _new, tensors)


def allgather(tensors: Sequence[Tensor], call: Call) -> Handle:
    """Concatenate the ranks' tensors along dimension 0, each of `tensors` for itself, all of one dtype."""
    request = call.request("allgather", tensors, free_rows=True)
    return prepare(request, [storage.flat_rows(tensor) for tensor in tensors], (), _new_rows, tensors)


def allgather_with_rows(tensors: Sequence[Tensor], call: Call) -> Handle:
    """`allgather`, with pairs as results: the tensor, and how many of its rows came from each rank."""
    handle = allgather(tensors, call)
    handle.collect = _new_with_rows
    return handle


def reducescatter(tensors: Sequence[Tensor], call: Call) -> Handle:
    """Reduce each of `tensors`, all of one dtype, and keep this rank's rows."""
    request = call.request("reducescatter", tensors)
    check_op(call.op, request.dtype)
    if call.op not in (Average, Sum):
        raise UsageError(f"reducescatter with op={call.op} is not offered: use Sum or Average, or allreduce")
    return prepare(request, [storage.flat_rows(tensor) for tensor in tensors], (), _new_rows, tensors)


def broadcast(tensor: Tensor, root: int, call: Call, in_place: bool = False) -> Handle:
    """The root's tensor, into a new one or into `tensor`."""
    root = call.process_set.check_root(root)
    request = call.request("broadcast", [tensor], root=root)
    if in_place:
        return prepare(request, (), (storage.flat(tensor),), _in_place, [tensor])
    output = storage.copy_of(tensor) if world.rank() == root else storage.room_for([storage.flat(tensor)])
    return prepare(request, (), (output,), _new, [tensor])


def alltoall(tensor: Tensor, splits: Any, call: Call) -> Handle:
    """Send `splits[i]` rows to rank i; without splits, to each rank the same number."""
    request = call.request("alltoall", [tensor], free_rows=True)
    row = storage.elements_in_row(tensor.shape) or 1
    if isinstance(splits, Tensor):
        splits = splits.tolist()  # wherever it lies
    rows = rows_per_rank(tensor.shape[0], splits, call.process_set.size())
    handle = prepare(request, (storage.flat_rows(tensor),), (), _new_rows, [tensor])
    handle.splits = [count * row for count in rows]
    return handle


def received_rows(handle: Handle, index: int = 0) -> list[int]:
    """How many rows came from each rank, in the tensor at `index` of an allgather or alltoall that is done."""
    row = storage.elements_in_row(handle.request.shapes[index]) or 1
    return [count // row for count in handle.received[index]]


# Groups and single tensors ---------------------------------------------------------------------------------------------


def grouped(
    tensors: Sequence[Tensor],
    call: Call,
    make: Callable[[Sequence[Tensor], Call], Handle],
    start: Callable[[Handle], Handle],
) -> AnyHandle:
    """Start one operation per dtype and device among the tensors; to the caller they are one."""
    tensors = list(tensors)
    if not tensors:
        raise UsageError("a group needs at least one tensor, and this one is empty: leave the call out, on all ranks")
    places: dict[str, list[int]] = {}
    for place, tensor in enumerate(tensors):
        key = storage.dtype_name(tensor)
        if cuda.kind(tensor) != cuda.CPU:
            key += f".{cuda.CUDA}"
        places.setdefault(key, []).append(place)
    if len(places) == 1:
        return start(make(tensors, call))
    return HandleGroup(
        [(start(make([tensors[place] for place in group], call.named(key))), group) for key, group in places.items()]
    )


def single(handle: Handle) -> Handle:
    """A handle whose result is the tensor itself, not a list of one."""
    collect = handle.collect
    handle.collect = lambda handle: collect(handle)[0]
    return handle
