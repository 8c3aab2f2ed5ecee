"""Dispatch: calls the backend for operations that all ranks are ready to execute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from distrun.contract import settings
from distrun.runtime.backends.adasum import HOROVODS_LEAST_SQUARE, adasum
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.groups import Groups
from distrun.runtime.operations.handle import Flat, Handle, describe
from distrun.runtime.operations.reduction import Adasum, Reduction, reduction
from distrun.runtime.operations.request import Request, counts_of
from distrun.runtime.operations.wire import AS_THEY_ARE, WITH_FEEDBACK, wire_for

AnyHandle = TypeVar("AnyHandle", bound=Handle)


def execute(groups: Groups, handles: Sequence[Handle]) -> None:
    """Execute `handles` and fill in their outputs.

    All have the same kind and, if there are several, the same `fusion_key`. This rank belongs to their process set.
    """
    request, what = handles[0].request, describe(handles)
    backend = groups.backends[request.process_set]
    if request.kind == "allreduce":
        for those in together(backend, handles):
            _allreduce(backend, those, what)
        return
    for handle in handles:
        if request.kind == "barrier":
            backend.barrier(what)
        elif request.kind == "broadcast":
            for array in handle.outputs:
                backend.broadcast(array, groups.root_of(request), what)
        elif request.kind == "allgather":
            rooms = _rooms(handle)
            gathered = [backend.allgather(array, what, room) for array, room in zip(handle.inputs, rooms, strict=True)]
            handle.outputs = [output for output, _ in gathered]
            handle.received = [counts for _, counts in gathered]
        elif request.kind == "alltoall":
            output, counts = backend.alltoall(handle.inputs[0], handle.splits, what)
            handle.outputs, handle.received = [output], [counts]
        else:
            handle.outputs = list(_reducescatter(backend, handle, what))


def _reducescatter(backend: Backend, handle: Handle, what: str) -> Iterator[Flat]:
    """Yield this rank's part of each tensor of the handle's group."""
    request, rooms = handle.request, _rooms(handle)
    for array, shape, room in zip(handle.inputs, request.shapes, rooms, strict=True):
        if backend.quantisation_of(request):  # each tensor by its own size
            request = request._replace(shapes=(shape,))
        how = reduction_of(backend, request, handle.taking_part)
        yield backend.reducescatter(array, counts_of(shape, backend.size), how, what, room)


def _rooms(handle: Handle) -> Sequence[Flat | None]:
    """Return the arrays for the results of `handle`: its outputs if it was made with any, else None for each input."""
    return handle.outputs or [None] * len(handle.inputs)


def reduction_of(backend: Backend, request: Request, taking_part: int = 0) -> Reduction:
    """Return the arithmetic of a request. An average is over `taking_part` ranks if it is not 0 (see `Handle`)."""
    dtype = backend.wire_of(request)
    wire = wire_for(dtype, request.shapes) if dtype else AS_THEY_ARE
    how = request.dtype, request.op, backend.size, request.prescale, request.postscale, wire
    return reduction(*how, taking_part) if taking_part else reduction(*how)


def together(backend: Backend, handles: Sequence[AnyHandle]) -> Sequence[Sequence[AnyHandle]]:
    """Return the groups of allreduces to execute as one each.

    All are fused, except those with error feedback, which are executed one by one: residuals are kept by an element's
    place in its operation, and this place would depend on what it is fused with.
    """
    if len(handles) == 1 or backend.quantisation_of(handles[0].request) != WITH_FEEDBACK:
        return (handles,)
    alone, rest = [], []
    for handle in handles:
        if backend.wire_of(handle.request) == WITH_FEEDBACK:
            alone.append([handle])
        else:
            rest.append(handle)
    return [*alone, rest] if rest else alone


def _allreduce(backend: Backend, handles: Sequence[Handle], what: str) -> None:
    request = handles[0].request
    if len(handles) == 1:
        inputs, outputs = handles[0].inputs, handles[0].outputs
    else:
        inputs = [array for handle in handles for array in handle.inputs]
        outputs = [array for handle in handles for array in handle.outputs]
    if not inputs:
        return
    if request.op is Adasum:
        counts = [math.prod(shape) for handle in handles for shape in handle.request.shapes]
        averages_hosts = settings.current().adasum == settings.HIERARCHICAL
        least_square = HOROVODS_LEAST_SQUARE if settings.current().horovod else 0.0
        adasum(backend, inputs, outputs, request, counts, averages_hosts, least_square, what)
    else:
        if len(handles) > 1 and backend.quantisation_of(request):  # each tensor by its own size
            request = request._replace(shapes=tuple(shape for handle in handles for shape in handle.request.shapes))
        feedback = handles[0].feedback if len(handles) == 1 else None
        backend.allreduce(inputs, outputs, reduction_of(backend, request, handles[0].taking_part), what, feedback)
