"""Collectives on numpy arrays that a framework shows us: with shapes, and results in memory of their own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.graphs.collective import Collective, Flat, Prepared, prepare, storage_of
from distrun.runtime import collectives, dtypes, world
from distrun.runtime.collectives.copies import rows_per_rank
from distrun.runtime.request import Shape

Array = NDArray[Any]


def reduce(arrays: Sequence[Array], collective: Collective) -> list[Array]:
    """Allreduce or broadcast. The results share no memory with the inputs: whoever gets them may keep them."""
    names, shapes = _kinds(arrays)
    if (
        collective.kind == "allreduce"
        and len(set(names)) == 1
        and sum(array.nbytes for array in arrays) >= collectives.LARGE
    ):
        return _reduce_in_shared_memory(arrays, names[0], collective)
    outputs = [_room(array.size, storage_of(name)) for array, name in zip(arrays, names, strict=True)]
    prepare(collective, names, shapes).reduce(_flats(arrays, names), outputs)
    return [output.view(array.dtype).reshape(array.shape) for output, array in zip(outputs, arrays, strict=True)]


def _reduce_in_shared_memory(arrays: Sequence[Array], name: str, collective: Collective) -> list[Array]:
    """All results lie in one room that other ranks see, so nothing is copied but the inputs."""
    names, shapes = _kinds(arrays)
    room = collectives.empty(sum(array.size for array in arrays), storage_of(name))
    results = prepare(collective, names, shapes).reduce_into(_flats(arrays, names), room)
    return [result.view(array.dtype).reshape(array.shape) for result, array in zip(results, arrays, strict=True)]


def move_rows(
    arrays: Sequence[Array], splits: Array | None, collective: Collective
) -> tuple[list[Array], NDArray[np.int32]]:
    """Allgather, alltoall or reducescatter; see `gather`."""
    names, shapes = _kinds(arrays)
    results, received = gather(prepare(collective, names, shapes), shapes, _flats(arrays, names), splits, collective)
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
        raise UsageError(
            f"{kind} divides the first dimension, and a 0-dimensional tensor has none: use tf.reshape(tensor, [1])"
        )
    return prod(shape[1:])


def _kinds(arrays: Sequence[Array]) -> tuple[tuple[str, ...], tuple[Shape, ...]]:
    return tuple([dtypes.name_of(array.dtype) for array in arrays]), tuple([array.shape for array in arrays])


def _flats(arrays: Sequence[Array], names: Sequence[str]) -> list[Flat]:
    return [array.reshape(-1).view(storage_of(name)) for array, name in zip(arrays, names, strict=True)]


def _room(count: int, dtype: np.dtype[Any]) -> Flat:
    is_large = count * dtype.itemsize >= collectives.LARGE
    return collectives.empty(count, dtype) if is_large else np.empty(count, dtype)
