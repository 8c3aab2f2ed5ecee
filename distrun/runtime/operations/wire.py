"""The form of a reduction's elements on the way between hosts: as they are, in half precision, or quantised.

Quantised elements have 8 or 4 bits, and a block of them shares a scale. Small tensors (biases, norms, flags) are not
quantised. They are a tiny part of the bytes, and large elements in the same block would cost them all precision. In an
operation of many tensors they are sent unquantised beside the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from distrun.contract.settings import QUANTISED

ENCODED_DTYPES = ("float32", "float64")
"""The types of elements that may be sent as another type."""
WITH_FEEDBACK = "int4"
"""The type that is too coarse for gradients without error feedback (see `Feedback`)."""
SMALL = 4096
"""The number of elements below which a tensor is not quantised."""


class Wire(NamedTuple):
    """The form of elements on the way between hosts."""

    dtype: str = ""
    """One of `WIRE_DTYPES`. Empty: the elements' own type."""
    exact: tuple[tuple[int, int], ...] = ()
    """The ranges of the operation's elements that are not quantised: the first element, and the one after the last."""


AS_THEY_ARE = Wire()
"""Elements are sent in their own type."""


def wire_for(dtype: str, shapes: Iterable[Sequence[int]]) -> Wire:
    """Return how the elements of tensors of these shapes are sent if `dtype` is the requested wire type."""
    return Wire(dtype, exact_ranges(shapes)) if dtype in QUANTISED else Wire(dtype)


def is_small(shape: Sequence[int]) -> bool:
    """Whether a tensor has too few elements to be quantised."""
    return math.prod(shape) < SMALL


def exact_ranges(shapes: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the small tensors' elements, when tensors of these shapes are laid one after the other."""
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
