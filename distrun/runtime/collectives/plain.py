"""Allreduces of plain arrays: contiguous, writable, in host memory, and of a dtype that numpy has.

Nearly all arrays are plain. For a small array Python's own work costs more than the operation, so this path does as
little of it as possible. All other arrays take the general path in `reductions`. Training repeats the same operations,
so their requests are made once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.contract.settings import REQUESTS
from distrun.runtime.collectives.call import reduction_call
from distrun.runtime.collectives.tensors import given, room_for
from distrun.runtime.operations import dtypes
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum
from distrun.runtime.operations.request import Request, Shape
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

Array = NDArray[Any]

Terms = tuple[str | None, ReduceOp, float, float, ProcessSet]
"""The name, the operator, the prescale and postscale factors, and the process set of a call."""


def in_place(array: Array, terms: Terms, result: Any) -> Handle | None:
    """Return the allreduce of an array in its own memory, not started yet, or None if the array is not plain.

    Args:
        array: exactly a `numpy.ndarray`, not a subclass.
        terms: the terms of the call.
        result: the handle's result.

    Raises:
        NotInitializedError: before `init`.
        UsageError: an argument is impossible (see `Call.request`).
    """
    engine = world.engine()
    if not array.flags.carray:
        return None
    shape = array.shape
    request = _request(terms, array.dtype, (shape,))
    if request is None:
        return None
    flats = (array if len(shape) == 1 else array.ravel(),)
    return Handle(engine, request, flats, flats, given, result)


def copied(array: Array, terms: Terms, collect: Callable[[Handle], Any]) -> Handle | None:
    """Return the allreduce of an array into a new flat one, which `collect` turns into the result (see `in_place`)."""
    engine = world.engine()
    if not array.flags.carray:
        return None
    request = _request(terms, array.dtype, (array.shape,))
    if request is None:
        return None
    room = room_for(array.size, array.dtype, engine)
    return Handle(engine, request, (array.ravel(),), (room,), collect, array.dtype)


def group_in_place(arrays: Sequence[Array], terms: Terms, result: Any) -> Handle | None:
    """Return one allreduce of several arrays in their own memory, or None if not all are plain and of one dtype. See
    `in_place`."""
    engine = world.engine()
    taken = _group(arrays, terms)
    if taken is None:
        return None
    request, flats = taken
    return Handle(engine, request, flats, flats, given, result)


def group_copied(arrays: Sequence[Array], terms: Terms, collect: Callable[[Handle], Any]) -> Handle | None:
    """Return one allreduce of several arrays into a new flat one, which `collect` turns into the results (see
    `group_in_place`)."""
    engine = world.engine()
    taken = _group(arrays, terms)
    if taken is None:
        return None
    request, flats = taken
    dtype = flats[0].dtype
    room = room_for(sum([flat.size for flat in flats]), dtype, engine)
    return Handle(engine, request, flats, (room,), collect, dtype)


_dtype_of, _shape_of, _is_contiguous = attrgetter("dtype"), attrgetter("shape"), attrgetter("flags.carray")


def _group(arrays: Sequence[Array], terms: Terms) -> tuple[Request, list[Array]] | None:
    if len(set(map(_dtype_of, arrays))) > 1 or not all(map(_is_contiguous, arrays)):
        return None
    request = _request(terms, arrays[0].dtype, tuple(map(_shape_of, arrays)))
    return None if request is None else (request, [array if array.ndim == 1 else array.ravel() for array in arrays])


# Requests -------------------------------------------------------------------------------------------------------------


def _request(terms: Terms, dtype: np.dtype[Any], shapes: tuple[Shape, ...]) -> Request | None:
    """Return the request for arrays of a dtype, or None if the dtype is not numpy's own."""
    name, op, prescale, postscale, process_set = terms
    # Cached are only calls whose arguments cannot mislead the cache: a number such as 1 is equal to an operator without
    # being one, a factor may be an object that changes, and in the next world a process set's number may mean another.
    if (op is Average or op is Sum) and process_set is global_process_set and prescale == 1.0 == postscale:
        known = _known_request if len(shapes) == 1 else _known_group
        try:
            return known(name, op, dtype, shapes)
        except TypeError:  # the name cannot be hashed: `_new_request` refuses it
            pass
    return _new_request(terms, dtype, shapes)


def _new_request(terms: Terms, dtype: np.dtype[Any], shapes: tuple[Shape, ...]) -> Request | None:
    element = dtypes.name_of(dtype)
    request = reduction_call("allreduce", *terms).request(element, shapes)
    return None if element == dtypes.BFLOAT16 else request


def _remembered_request(
    name: str | None, op: ReduceOp, dtype: np.dtype[Any], shapes: tuple[Shape, ...]
) -> Request | None:
    return _new_request((name, op, 1.0, 1.0, global_process_set), dtype, shapes)


_known_request = lru_cache(maxsize=REQUESTS)(_remembered_request)
_known_group = lru_cache(maxsize=1 << 8)(_remembered_request)  # each may be large
