"""Performing: from operations that are ready to calls of a backend."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from distrun.runtime.backends.base import Backend
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Reduction, reduction
from distrun.runtime.operations.request import Request, Shape, title

_FROM_OP_ON = slice(Request._fields.index("op"), None)


def fusion_key(request: Request) -> Hashable | None:
    """What two requests must have in common to be carried out as one; None when the request must travel alone."""
    if request.kind != "allreduce":
        return None
    return (request.dtype, *tuple(request)[_FROM_OP_ON])


def rows_of(shape: Shape, size: int) -> list[int]:
    """How many rows of dimension 0 each rank keeps in a reducescatter: evenly, the earlier ranks taking what is over."""
    rows, over = divmod(shape[0], size)
    return [rows + (rank < over) for rank in range(size)]


def execute(backend: Backend, handles: Sequence[Handle]) -> None:
    """Carry out `handles`, all of one kind and, if there are several, of one `fusion_key`; fills in their outputs."""
    request, what = handles[0].request, describe(handles)
    if request.kind == "allreduce":
        _allreduce(backend, handles, reduction_of(backend, request), what)
        return
    for handle in handles:
        if request.kind == "barrier":
            backend.barrier(what)
        elif request.kind == "broadcast":
            for array in handle.outputs:
                backend.broadcast(array, request.root, what)
        elif request.kind == "allgather":
            gathered = [backend.allgather(array, what) for array in handle.inputs]
            handle.outputs = [output for output, _ in gathered]
            handle.received = [counts for _, counts in gathered]
        elif request.kind == "alltoall":
            output, counts = backend.alltoall(handle.inputs[0], handle.splits, what)
            handle.outputs, handle.received = [output], [counts]
        else:
            handle.outputs = [
                backend.reducescatter(array, counts_of(shape, backend.size), reduction_of(backend, request), what)
                for array, shape in zip(handle.inputs, request.shapes, strict=True)
            ]


def describe(handles: Sequence[Handle]) -> str:
    """Operations that are carried out together, as messages call them."""
    request = handles[0].request
    what = title(request.kind, request.name, _place(handles[0]))
    return what if len(handles) == 1 else f"{what} and {len(handles) - 1} more"


def _place(handle: Handle) -> int | None:
    return handle.key[1] if isinstance(handle.key[1], int) else None


def reduction_of(backend: Backend, request: Request) -> Reduction:
    """The arithmetic of a request."""
    return reduction(
        request.dtype, request.op, backend.size, request.prescale, request.postscale, backend.wire_of(request)
    )


def _allreduce(backend: Backend, handles: Sequence[Handle], how: Reduction, what: str) -> None:
    if len(handles) == 1:
        inputs, outputs = handles[0].inputs, handles[0].outputs
    else:
        inputs = [array for handle in handles for array in handle.inputs]
        outputs = [array for handle in handles for array in handle.outputs]
    if inputs:
        backend.allreduce(inputs, outputs, how, what)


def counts_of(shape: Shape, size: int) -> list[int]:
    """Elements each rank keeps in a reducescatter. Rows without elements travel as one byte each."""
    row = math.prod(shape[1:]) or 1
    return [rows * row for rows in rows_of(shape, size)]
