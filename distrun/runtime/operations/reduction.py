"""The arithmetic of a reduction: how one element of each rank becomes one element of the result.

A `Reduction` combines flat arrays, one per rank, in rank order. So all ranks that compute an element compute the same
bits, which makes the result identical on all ranks however the work is divided among them.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.runtime.operations.dtypes import ELEMENT_TYPES, ElementType
from distrun.runtime.operations.wire import AS_THEY_ARE, ENCODED_DTYPES, Wire

Flat = NDArray[Any]

CHUNK = 256 << 10
"""Bytes combined at a time: chunks of two sources fit a core's L2 cache, and each numpy call has enough to do."""


class ReduceOp(enum.IntEnum):
    """How elements are combined. The names are Horovod's."""

    AVERAGE = 0
    SUM = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    ADASUM = 5

    def __str__(self) -> str:
        return self.name.lower()


Average = ReduceOp.AVERAGE
"""The sum of the ranks' elements, divided by the number of ranks."""
Sum = ReduceOp.SUM
"""The sum of the ranks' elements."""
Min = ReduceOp.MIN
"""The smallest of the ranks' elements."""
Max = ReduceOp.MAX
"""The largest of the ranks' elements."""
Product = ReduceOp.PRODUCT
"""The product of the ranks' elements."""

Adasum = ReduceOp.ADASUM
"""A sum for gradients, between their sum and their average, depending on how much the ranks' elements agree."""

_UFUNCS: dict[ReduceOp, np.ufunc] = {
    Average: np.add,
    Sum: np.add,
    Min: np.minimum,
    Max: np.maximum,
    Product: np.multiply,
}

_BOOLEAN_UFUNCS: dict[ReduceOp, np.ufunc] = {
    **_UFUNCS,
    Average: np.logical_or,
    Sum: np.logical_or,
    Product: np.logical_and,
}

_ORDERED_ONLY = (Min, Max)
_REAL = ("float16", "bfloat16", "float32", "float64", np.dtype("longdouble").name)
_MEANINGFUL = {
    (op, name)
    for op in ReduceOp
    for name in ELEMENT_TYPES
    if not (op in _ORDERED_ONLY and name.startswith("complex")) and (op is not Adasum or name in _REAL)
}


def check_op(op: ReduceOp, dtype: str) -> None:
    """Raise an error if `op` is not defined for elements of type `dtype`.

    Raises:
        UsageError: `op` is not a reduce op, or has no meaning for `dtype`.
    """
    if type(op) is not ReduceOp:
        known = ", ".join(f"distrun.{member.name.capitalize()}" for member in ReduceOp)
        raise UsageError(f"op={op!r} is not a reduce op: use one of {known}")
    if op is Adasum and dtype not in _REAL:
        raise UsageError(f"op={op} is for gradients, and {dtype} is no real floating-point type: use Sum or Average")
    if (op, dtype) not in _MEANINGFUL:
        raise UsageError(f"op={op} has no meaning for {dtype}, which is not ordered: reduce the real or imaginary part")


def reduce_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Return the operator for Horovod's two ways of specifying it. If neither is given, it is `Average`.

    Raises:
        UsageError: both are given.
    """
    if average is not None:
        if op is not None:
            raise UsageError(f"average={average} and op={op} are both given: drop average, the older of the two")
        return Average if average else Sum
    return Average if op is None else op


class Reduction:
    """One way of combining `size` arrays: element type, operator and scale factors, prepared once and used repeatedly.

    The result is `postscale * op(prescale * x_0, prescale * x_1, ...)`, computed in the elements' accumulator type. For
    integers, an average is the exact sum (modulo 2**64) divided by `size` and rounded towards zero, and other scale
    factors are applied in float64 and rounded towards zero. For booleans, sum and average are `or`, and product is
    `and`.
    """

    def __init__(
        self,
        element: ElementType,
        op: ReduceOp,
        size: int,
        prescale: float,
        postscale: float,
        divisor: float | None = None,
        wire: Wire = AS_THEY_ARE,
    ) -> None:
        """`divisor` is what an average divides by, if not `size`. `wire` is the elements' form between hosts."""
        if op is Average and element.accumulator.kind in "iu" and element.accumulator.itemsize < 8:
            # The average of 200 and 200 is 200, but their sum does not fit a uint8.
            element = replace(element, accumulator=np.dtype(f"{element.accumulator.kind}8"))
        self.element = element
        self.op = op
        self.size = size
        self.wire = wire
        self.prescale = prescale
        self.postscale = postscale
        self._ufunc = _UFUNCS[op]
        if element.storage == np.bool_:
            self._ufunc = _BOOLEAN_UFUNCS[op]
        self._is_inexact = inexact = np.issubdtype(element.accumulator, np.inexact)
        self.divisor = divisor = (size if divisor is None else divisor) if op is Average else 1
        number = np.longdouble if element.name in (np.dtype("longdouble").name, np.dtype("clongdouble").name) else float
        # Divide in long double: 1/3 as a Python float would have only a double's precision.
        self._postscale = number(postscale) / divisor if divisor != 1 and inexact else postscale
        self._divisor = int(divisor) if np.issubdtype(element.accumulator, np.integer) else 1
        self._accumulator, self._operand = _scratch(element.accumulator)
        self._direct = not element.is_converted and prescale == 1.0

    @property
    def is_accumulated(self) -> bool:
        """Whether small integers are averaged, whose sums need a wider type."""
        return self.element.is_converted and self.element.accumulator.kind in "iu"

    @property
    def is_identity(self) -> bool:
        """Whether the result is the input itself, in a world of one."""
        return self.size == 1 and self.prescale == 1.0 and self._postscale == 1.0

    @property
    def factor(self) -> float | None:
        """The factor that the sum of the arrays is multiplied by. None unless that is all, in float32 or float64."""
        is_scaled_sum = self.op in (Sum, Average) and self._direct and self.element.name in ("float32", "float64")
        return float(self._postscale) if is_scaled_sum else None

    def combine(self, sources: Sequence[Flat], targets: Sequence[Flat]) -> None:
        """Combine `sources`, flat arrays of equal length in rank order, and write the result to each of `targets`.

        A target may be one of the sources.
        """
        step = self._accumulator.size
        length = sources[0].size
        if length <= step:
            self._combine_chunk(sources, targets)
            return
        for start in range(0, length, step):
            chunk = slice(start, min(length, start + step))
            self._combine_chunk([source[chunk] for source in sources], [target[chunk] for target in targets])

    def _combine_chunk(self, sources: Sequence[Flat], targets: Sequence[Flat]) -> None:
        first = targets[0]
        if len(sources) == 2 and self._direct:  # no accumulator is needed, even if `first` is one of the sources
            total = self._ufunc(sources[0], sources[1], out=first)
        else:
            total = self._accumulate(sources)

        if self._divisor != 1:
            _divide_towards_zero(total, self._divisor)
        if self._postscale != 1.0:
            self._scale(total, self._postscale)
        if self.element.is_converted:
            self.element.encode(total, first)
        elif total is not first:
            first[:] = total
        for target in targets[1:]:
            target[:] = first

    def _accumulate(self, sources: Sequence[Flat]) -> Flat:
        total = self._accumulator[: sources[0].size]
        if self._direct and len(sources) > 2:
            self._ufunc(sources[0], sources[1], out=total)
            for source in sources[2:]:
                self._ufunc(total, source, out=total)
            return total
        self._load(sources[0], total)
        operand = self._operand[: total.size]
        for source in sources[1:]:
            self._load(source, operand)
            self._ufunc(total, operand, out=total)
        return total

    def _load(self, source: Flat, out: Flat) -> None:
        self.element.decode(source, out)
        if self.prescale != 1.0:
            self._scale(out, self.prescale)

    def _scale(self, values: Flat, factor: float) -> None:
        if self._is_inexact:
            values *= values.dtype.type(factor)
        elif values.dtype != np.bool_:
            values[:] = np.trunc(values * np.float64(factor)).astype(values.dtype)


def _divide_towards_zero(values: Flat, divisor: int) -> None:
    """Divide integers as C does. numpy rounds towards minus infinity instead."""
    remainder = np.remainder(values, divisor)
    quotient = np.floor_divide(values, divisor)
    np.add(quotient, (values < 0) & (remainder != 0), out=values, casting="unsafe")


@functools.cache
def _scratch(dtype: np.dtype[Any]) -> tuple[Flat, Flat]:
    """Two chunks of scratch memory, shared by all reductions of an accumulator dtype, since one runs at a time."""
    return np.empty(CHUNK // dtype.itemsize, dtype), np.empty(CHUNK // dtype.itemsize, dtype)


@functools.lru_cache(maxsize=1024)
def reduction(
    dtype: str,
    op: ReduceOp,
    size: int,
    prescale: float,
    postscale: float,
    wire: Wire = AS_THEY_ARE,
    divisor: float | None = None,
) -> Reduction:
    """The `Reduction` for these parameters, made once. It is not thread-safe. Only the thread with the turn uses it."""
    return Reduction(
        ELEMENT_TYPES[dtype], op, size, prescale, postscale, divisor, wire if dtype in ENCODED_DTYPES else AS_THEY_ARE
    )
