"""A collective on numpy arrays: what happens outside of graphs, and in callbacks out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distrun.errors import MismatchError
from distrun.graphs.collective import Collective, prepare
from distrun.graphs.jax.shapes import REDUCING
from distrun.runtime import world
from distrun.runtime.collectives.copies import rows_per_rank
from distrun.runtime.collectives.tensors import flat_of, flat_rows, needs_rows, room_for, row_size
from distrun.runtime.request import title

Array = NDArray[Any]


def perform(collective: Collective, arrays: Sequence[Array]) -> list[Array]:
    """The results of a collective, as new arrays. Waits.

    Raises:
        CollectiveError: see `Handle.wait`.
    """
    if collective.kind not in REDUCING:
        return [array for array, _ in gather(collective, arrays)]
    flats = [flat_of(array) for array in arrays]
    prepared = prepare(collective, tuple(dtype for _, dtype in flats), tuple(array.shape for array in arrays))
    engine = world.engine()
    outputs = [room_for(flat.size, flat.dtype, engine) for flat, _ in flats]
    prepared.reduce([flat for flat, _ in flats], outputs)
    return [output.view(array.dtype).reshape(array.shape) for output, array in zip(outputs, arrays, strict=True)]


def perform_evenly(collective: Collective, arrays: Sequence[Array]) -> list[Array]:
    """`perform` for a graph, which knows the shapes of the results beforehand.

    Raises:
        MismatchError: the ranks do not have the same number of rows; raised on every rank.
    """
    if collective.kind in REDUCING:
        return perform(collective, arrays)
    results = gather(collective, arrays)
    for _, rows in results:
        if collective.kind == "allgather" and len(set(rows)) > 1:
            raise MismatchError(
                f"{title(collective.kind, collective.name)} inside jit, grad or vmap needs the same number of rows on all "
                f"ranks, and they have {rows}: pad the arrays, or call it outside ({collective.site})"
            )
    return [array for array, _ in results]


def gather(
    collective: Collective, arrays: Sequence[Array], splits: ArrayLike | None = None
) -> list[tuple[Array, list[int]]]:
    """The results of an allgather, alltoall or reducescatter, each with the number of rows that came from each rank.

    `splits` are the rows to send to each rank in an alltoall, which takes one array.
    """
    flats = [flat_rows(needs_rows(array, collective.kind)) for array in arrays]
    prepared = prepare(collective, tuple(dtype for _, dtype in flats), tuple(array.shape for array in arrays))
    elements = None
    if collective.kind == "alltoall":
        (array,) = arrays
        elements = [rows * (row_size(array.shape) or 1) for rows in rows_per_rank(array.shape[0], splits, world.size())]
    results = []
    for array, (output, counts) in zip(arrays, prepared.gather([flat for flat, _ in flats], elements), strict=True):
        row = row_size(array.shape)
        rows = output.size // (row or 1)
        shaped = output.view(array.dtype) if row else np.empty(0, array.dtype)
        results.append((shaped.reshape(rows, *array.shape[1:]), [count // (row or 1) for count in counts]))
    return results
