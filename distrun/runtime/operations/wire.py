"""How the elements of a reduction travel between hosts: as they are, in half precision, or quantised.

Quantised elements have 8 or 4 bits, and share a scale with their neighbours. Small tensors - biases, norms, flags -
are not quantised: they are hardly anything of the bytes, and a neighbour with large elements would cost them their
own. In an operation of many tensors they travel as they are beside the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from distrun.contract.settings import QUANTISED

ENCODED_DTYPES = ("float32", "float64")
"""The types of elements that may travel as another one."""
WITH_FEEDBACK = "int4"
"""The type that takes so much from gradients that it has to be made up for (see `Feedback`)."""
SMALL = 4096
"""Elements below which a tensor is not quantised."""


class Wire(NamedTuple):
    """The way elements travel."""

    dtype: str = ""
    """One of `WIRE_DTYPES`; empty: their own."""
    exact: tuple[tuple[int, int], ...] = ()
    """Where among the elements of the operation those are, first and last but one, that are not quantised."""


AS_THEY_ARE = Wire()
"""Elements travel in their own type."""


def wire_for(dtype: str, shapes: Iterable[Sequence[int]]) -> Wire:
    """Return how the elements of tensors of these shapes travel, if `dtype` is the type that was asked for."""
    return Wire(dtype, exact_ranges(shapes)) if dtype in QUANTISED else Wire(dtype)


def is_small(shape: Sequence[int]) -> bool:
    """Return whether a tensor has too few elements to be quantised."""
    return math.prod(shape) < SMALL


def exact_ranges(shapes: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return where the small ones are among tensors of these shapes, laid one after the other."""
    ranges: list[tuple[int, int]] = []
    start = 0
    for shape in shapes:
        stop = start + math.prod(shape)
        if start < stop and is_small(shape):
            if ranges and ranges[-1][1] == start:
                ranges[-1] = ranges[-1][0], stop
            else:
                ranges.append((start, stop))
        start = stop
    return tuple(ranges)
