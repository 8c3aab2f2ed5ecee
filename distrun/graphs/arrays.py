"""Collectives on numpy arrays that a framework shows us: with shapes, and results in memory of their own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.graphs.collective import Collective, Flat, Prepared, prepare
from distrun.runtime import collectives, world
from distrun.runtime.collectives.copies import rows_per_rank
from distrun.runtime.collectives.tensors import flat_of
from distrun.runtime.operations.request import Shape

Array = NDArray[Any]


def reduce(arrays: Sequence[Array], collective: Collective) -> list[Array]:
    """Allreduce or broadcast. The results share no memory with the inputs: whoever gets them may keep them."""
    flats, names = _flats(arrays)
    prepared = prepare(collective, names, _shapes(arrays))
    nbytes = sum(array.nbytes for array in arrays)
    if collective.kind == "allreduce" and len(set(names)) == 1 and nbytes >= collectives.LARGE:
        # In one room that other ranks see, so nothing is copied but the inputs.
        results = prepared.reduce_into(flats, collectives.empty(sum(flat.size for flat in flats), flats[0].dtype))
    else:
        results = [_room(flat.size, flat.dtype) for flat in flats]
        prepared.reduce(flats, results)
    return [result.view(array.dtype).reshape(array.shape) for result, array in zip(results, arrays, strict=True)]


def move_rows(
    arrays: Sequence[Array], splits: Array | None, collective: Collective
) -> tuple[list[Array], NDArray[np.int32]]:
    """Allgather, alltoall or reducescatter; see `gather`."""
    (flats, names), shapes = _flats(arrays), _shapes(arrays)
    results, received = gather(prepare(collective, names, shapes), shapes, flats, splits, collective)
    return [
        flat.view(array.dtype).reshape(shape) if prod(shape) else np.empty(shape, array.dtype)
        for (flat, shape), array in zip(results, arrays, strict=True)
    ], received


def gather(
    prepared: Prepared, shapes: Sequence[Shape], inputs: Sequence[Flat], splits: Array | None, collective: Collective
) -> tuple[list[tuple[Flat, Shape]], NDArray[np.int32]]:
    """The results, flat, with their shapes; and how many rows of each came from each rank: [tensors, ranks].

    After a reducescatter, where every rank can tell by itself, that is [tensors, 0]. What has no elements is given as any
    flat array.

    Raises:
        UsageError: a tensor has no rows, or `splits` do not fit them.
    """
    sizes = [row_size(shape, collective.kind) for shape in shapes]
    flats = [
        flat if size else np.zeros(shape[0], flat.dtype)
        for flat, shape, size in zip(inputs, shapes, sizes, strict=True)
    ]
    elements = None
    if collective.kind == "alltoall":
        elements = [rows * (sizes[0] or 1) for rows in rows_per_rank(shapes[0][0], splits, world.size())]
    results = []
    received = []
    for (flat, counts), shape, size in zip(prepared.gather(flats, elements), shapes, sizes, strict=True):
        results.append((flat, (flat.size // (size or 1), *shape[1:])))
        received.append([count // (size or 1) for count in counts])
    return results, np.array(received, np.int32).reshape(len(shapes), -1)


def row_size(shape: Shape, kind: str) -> int:
    """The elements of a row.

    Raises:
        UsageError: there are no rows.
    """
    if not shape:
        raise UsageError(f"{kind} divides the first dimension, and a 0-dimensional tensor has none: reshape it to (1,)")
    return prod(shape[1:])


def _flats(arrays: Sequence[Array]) -> tuple[list[Flat], tuple[str, ...]]:
    pairs = [flat_of(array) for array in arrays]
    return [flat for flat, _ in pairs], tuple([name for _, name in pairs])


def _shapes(arrays: Sequence[Array]) -> tuple[Shape, ...]:
    return tuple([array.shape for array in arrays])


def _room(count: int, dtype: np.dtype[Any]) -> Flat:
    is_large = count * dtype.itemsize >= collectives.LARGE
    return collectives.empty(count, dtype) if is_large else np.empty(count, dtype)
