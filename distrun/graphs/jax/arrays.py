"""Collectives on numpy arrays for JAX, where the shapes of results in a graph must be known in advance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from distrun.errors import MismatchError
from distrun.graphs import arrays as any_framework
from distrun.graphs.jax.shapes import REDUCING
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.request import title

Array = NDArray[Any]


def perform(collective: Call, arrays: Sequence[Array]) -> list[Array]:
    """Execute a collective, wait, and return the results as new arrays."""
    if collective.kind in REDUCING:
        return any_framework.reduce(arrays, collective)
    return any_framework.move_rows(arrays, None, collective)[0]


def perform_evenly(collective: Call, arrays: Sequence[Array]) -> list[Array]:
    """Execute a collective of a graph, as `perform` does. If the ranks have different numbers of rows, each raises a
    MismatchError.
    """
    if collective.kind in REDUCING:
        return perform(collective, arrays)
    results, received = any_framework.move_rows(arrays, None, collective)
    if collective.kind == "allgather":
        check_even(collective, received.tolist())
    return results


def check_even(collective: Call, received: Iterable[Sequence[int]]) -> None:
    """Refuse an allgather in which the ranks have different numbers of rows, given those of each tensor.

    Raises:
        MismatchError: they differ.
    """
    for rows in received:
        if len(set(rows)) > 1:
            raise MismatchError(
                f"{title(collective.kind, collective.name)} inside jit, grad or vmap needs the same number of rows on "
                f"all ranks, and they have {list(rows)}: pad the arrays, or call it outside ({collective.site})"
            )
