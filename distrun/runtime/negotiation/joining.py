"""Joining: what operations mean when some ranks have reached the end of their data, and the neutral elements that let
these take part.

A rank that has joined takes part in all operations that the other ranks submit: with the neutral element of a
reduction, with no rows in an allgather, with nothing of its own in a broadcast. The idea and the name are Horovod's. In
Horovod mode the elements of such a rank are zeros, which count: an average is divided by the number of all ranks, and a
minimum is at most 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from distrun.contract import horovod
from distrun.host.ranks import list_ranks
from distrun.runtime.negotiation.matching.matching import Slot
from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Max, Min, Product, ReduceOp, Sum
from distrun.runtime.operations.request import ADD_PROCESS_SET, CUDA, REMOVE_PROCESS_SET, Request

if TYPE_CHECKING:
    from distrun.runtime.operations.engine import Engine


def ranks_that_count(slot: Slot) -> int:
    """Return the number of ranks whose elements an operation reduces, if some have joined. 0 if none has."""
    if not slot.excused:
        return 0
    return slot.count + slot.excused if horovod.is_on(os.environ) else slot.count


def objection(slot: Slot, joined: Sequence[int]) -> str:
    """Return why an operation is undefined while the ranks `joined` have joined. Empty if it is defined."""
    request = slot.request
    have = f"{list_ranks(joined)} {'has' if len(joined) == 1 else 'have'} joined"
    if request.kind == "alltoall":
        return f"{have}, and the rows for {'it' if len(joined) == 1 else 'them'} would be lost: call join() after it"
    if request.kind == "broadcast" and request.root in joined:
        return f"its root, rank {request.root}, has joined and has nothing to send: choose a root that has data left"
    if request.kind in (ADD_PROCESS_SET, REMOVE_PROCESS_SET):  # forming is matched elsewhere
        return f"{have}: all ranks must call it, before any of them joins"
    if request.op in (Min, Max, Product) and request.prescale != 1.0 and not horovod.is_on(os.environ):
        return f"{have}, and op={request.op} with a prescale_factor has no neutral element: scale the tensor instead"
    return ""


def neutral(op: ReduceOp, dtype: str, count: int) -> NDArray[Any]:
    """Return elements, in storage form, that do not change the result of a reduction: zeros, limits or ones."""
    element = ELEMENT_TYPES[dtype]
    values = np.zeros(count, element.storage)
    if op in (Min, Max, Product) and count:
        element.encode(np.full(count, _neutral_value(op, element.accumulator), element.accumulator), values)
    return values


def _neutral_value(op: ReduceOp, dtype: np.dtype[Any]) -> Any:
    if op is Product:
        return 1
    if dtype.kind == "f":
        return np.inf if op is Min else -np.inf
    if dtype.kind == "b":
        return op is Min
    limits = np.iinfo(dtype)
    return limits.max if op is Min else limits.min


def stand_in(request: Request) -> Handle:
    """Return the operation that a rank that has joined executes for a request of the other ranks.

    No caller waits for it, and its results are dropped. While a rank stands in, the others stage tensors on their GPUs
    through host memory.
    """
    counts = [math.prod(shape) for shape in request.shapes]
    if request.device == CUDA and request.kind == "allreduce":
        counts = [sum(counts)]  # as the other ranks' tensors are staged
    inputs: Sequence[NDArray[Any]] = ()
    outputs: Sequence[NDArray[Any]] = ()
    if request.kind in ("allreduce", "reducescatter"):
        op = Sum if horovod.is_on(os.environ) else request.op  # zeros, as Horovod's ranks have
        if request.kind == "reducescatter":  # rows are moved, and a row without elements is sent as one element
            counts = [count or shape[0] for count, shape in zip(counts, request.shapes, strict=True)]
        inputs = [neutral(op, request.dtype, count) for count in counts]
        outputs = inputs if request.kind == "allreduce" else ()
    elif request.kind == "allgather":
        inputs = [np.empty(0, ELEMENT_TYPES[request.dtype].storage) for _ in counts]
    elif request.kind == "broadcast":
        outputs = [np.empty(count, ELEMENT_TYPES[request.dtype].storage) for count in counts]
    handle = Handle(cast("Engine", None), request, inputs, outputs)
    handle.stands_in = True
    handle.key = (request.process_set, "" if request.name is None else request.name)
    return handle
