"""Collectives on numpy arrays with shapes, over a framework's memory. Results have their own memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.graphs.prepared import Flat, Operations, Prepared, complete, prepare
from distrun.runtime import collectives
from distrun.runtime.collectives.call import Call, check_rows, elements_per_rank, row_size, rows_in
from distrun.runtime.collectives.tensors import LARGE, flat_of
from distrun.runtime.operations.request import Shape

Array = NDArray[Any]


def reduce(arrays: Sequence[Array], collective: Call) -> list[Array]:
    """Return the results of an allreduce or a broadcast. They share no memory with `arrays`, so they may be kept."""
    flats, names = _flats(arrays)
    prepared = prepare(collective, names, _shapes(arrays))
    nbytes = sum(array.nbytes for array in arrays)
    if collective.kind == "allreduce" and len(set(names)) == 1 and nbytes >= LARGE:
        # The results are written into shared memory, so only the inputs are copied.
        results = prepared.reduce_into(flats, collectives.empty(sum(flat.size for flat in flats), flats[0].dtype))
    else:
        results = [_room(flat.size, flat.dtype) for flat in flats]
        prepared.reduce(flats, results)
    return [result.view(array.dtype).reshape(array.shape) for result, array in zip(results, arrays, strict=True)]


def move_rows(arrays: Sequence[Array], splits: Array | None, collective: Call) -> tuple[list[Array], NDArray[np.int32]]:
    """Return the results of an allgather, an alltoall or a reducescatter, and the rows from each rank.

    See `row_exchange`.
    """
    (flats, names), shapes = _flats(arrays), _shapes(arrays)
    results, received = complete(row_exchange(prepare(collective, names, shapes), shapes, flats, splits, collective))
    return [
        flat.view(array.dtype).reshape(shape) if prod(shape) else np.empty(shape, array.dtype)
        for (flat, shape), array in zip(results, arrays, strict=True)
    ], received


def row_exchange(
    prepared: Prepared, shapes: Sequence[Shape], inputs: Sequence[Flat], splits: Array | None, collective: Call
) -> Operations[tuple[list[tuple[Flat, Shape]], NDArray[np.int32]]]:
    """Execute an allgather, an alltoall or a reducescatter on flat storage, yielding its operations.

    Returns:
        The results, flat, with their shapes (one without elements is any flat array), and the rows of each that came
        from each rank: [tensors, ranks], or [tensors, 0] after a reducescatter, where every rank knows them by itself.
    """
    check_rows(collective.kind, shapes)
    sizes = [row_size(shape) for shape in shapes]
    flats = [
        flat if size else np.zeros(shape[0], flat.dtype)
        for flat, shape, size in zip(inputs, shapes, sizes, strict=True)
    ]
    elements = None
    if collective.kind == "alltoall":
        elements = elements_per_rank(shapes[0], splits, collective.process_set.size())
    results = []
    received = []
    gathered = yield from prepared.row_exchange(flats, elements)
    for (flat, counts), shape in zip(gathered, shapes, strict=True):
        results.append((flat, (rows_in(flat.size, shape), *shape[1:])))
        received.append([rows_in(count, shape) for count in counts])
    return results, np.array(received, np.int32).reshape(len(shapes), -1)


def _flats(arrays: Sequence[Array]) -> tuple[list[Flat], tuple[str, ...]]:
    pairs = [flat_of(array) for array in arrays]
    return [flat for flat, _ in pairs], tuple([name for _, name in pairs])


def _shapes(arrays: Sequence[Array]) -> tuple[Shape, ...]:
    return tuple([array.shape for array in arrays])


def _room(count: int, dtype: np.dtype[Any]) -> Flat:
    is_large = count * dtype.itemsize >= LARGE
    return collectives.empty(count, dtype) if is_large else np.empty(count, dtype)
