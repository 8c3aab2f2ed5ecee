"""The wire format: elements as they travel between hosts, their own, half-precision ones, or quantised blocks."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

from distrun.contract.settings import QUANTISED
from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.quantisation import QUANTISERS, Quantiser
from distrun.runtime.operations.dtypes import ELEMENT_TYPES, ElementType
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.wire import Wire

Empty = Callable[[int, np.dtype[Any]], Flat]
"""Makes an array of so many elements, which may hold anything."""


class WireFormat(ABC):
    """Converts consecutive elements of one operation from memory to the wire and back."""

    dtype: np.dtype[Any]
    """The type of the array that travels."""
    is_encoded = True
    """Whether it is another array than the one in memory."""
    depth = 2
    """Pieces of an array in each step of its reduction, so that enough is on the wire while this rank computes, or
    another process has its core: the more, the smaller they are there. With 2 pieces in bf16 at 1 Gbit/s each lasts
    2 ms, and a rank that gets its core back after 3 ms finds the link idle: on a busy machine 100 MB took 1.04 s, and
    0.58 s with 8 pieces."""

    def __init__(self, empty: Empty = np.empty) -> None:
        """`empty` makes the arrays that are needed until the operation is over."""
        self._empty = empty

    def incoming(self, start: int, count: int) -> Flat:
        """Return an array in which `count` elements from `start` on can be received."""
        return self._empty(self.length(start, count), self.dtype)

    @abstractmethod
    def length(self, start: int, count: int) -> int:
        """Return the length of the array that travels for `count` elements from the operation's element `start` on."""

    def most(self, count: int) -> int:
        """Return the largest length of `count` elements."""
        return count

    @abstractmethod
    def encode(self, values: Flat, start: int) -> Flat:
        """Return the elements from the operation's element `start` on as they travel: `values` itself if as they are,
        else a new array."""

    def encode_results(self, results: Flat, start: int) -> Flat:
        """Return what `encode` does, of elements to which nothing is added any more, and replace them by what `decode`
        makes of it."""
        raw = self.encode(results, start)
        self.decode(raw, results, start)
        return raw

    @abstractmethod
    def decode(self, raw: Flat, out: Flat, start: int) -> Flat:
        """Return received elements, of which the first is element `start`, as in memory: `raw` itself if they travel as
        they are, else `out`, which is filled."""

    def decoded(self, raw: Flat, count: int, dtype: np.dtype[Any], start: int) -> Flat:
        """Return what `decode` does, in a new array of `dtype` where it needs one."""
        return self.decode(raw, self._empty(count, dtype), start)


def wire_format(
    wire: Wire, dtype: np.dtype[Any], feedback: Feedback | None = None, empty: Empty = np.empty
) -> WireFormat:
    """Return the format for elements whose storage type in memory is `dtype`; `feedback` is for quantised ones, and
    `empty` makes arrays that are needed until the operation is over."""
    if wire.dtype in QUANTISED:
        return Blocks(wire, dtype, feedback, empty)
    return Half(ELEMENT_TYPES[wire.dtype], empty) if wire.dtype else AsTheyAre(dtype)


class AsTheyAre(WireFormat):
    """Elements travel as they lie in memory."""

    is_encoded = False

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self.dtype = dtype

    def length(self, start: int, count: int) -> int:
        return count

    def encode(self, values: Flat, start: int) -> Flat:
        return values

    def decode(self, raw: Flat, out: Flat, start: int) -> Flat:
        return raw

    def decoded(self, raw: Flat, count: int, dtype: np.dtype[Any], start: int) -> Flat:
        return raw


class Half(WireFormat):
    """Elements travel in a half-precision type."""

    depth = 8

    def __init__(self, element: ElementType, empty: Empty = np.empty) -> None:
        super().__init__(empty)
        self._element = element
        self.dtype = element.storage

    def length(self, start: int, count: int) -> int:
        return count

    def encode(self, values: Flat, start: int) -> Flat:
        out = self._empty(values.size, self.dtype)
        self._element.encode(values.astype(self._element.accumulator, copy=False), out)
        return out

    def decode(self, raw: Flat, out: Flat, start: int) -> Flat:
        if out.dtype == self._element.accumulator:
            self._element.decode(raw, out)
        else:
            wide = self._empty(raw.size, self._element.accumulator)
            self._element.decode(raw, wide)
            out[:] = wide
        return out


class Blocks(WireFormat):
    """Elements travel quantised, in blocks, and behind them those that are not, as they lie in memory."""

    dtype = np.dtype(np.uint8)
    depth = 8

    def __init__(self, wire: Wire, memory: np.dtype[Any], feedback: Feedback | None, empty: Empty = np.empty) -> None:
        """`memory` is the type of elements in memory."""
        super().__init__(empty)
        self._memory = memory
        self._feedback = feedback
        self._quantiser = _quantiser(wire.dtype)
        self._exact = wire.exact

    def length(self, start: int, count: int) -> int:
        return self._quantiser.nbytes(count) + self._memory.itemsize * self._places(start, count).size

    def most(self, count: int) -> int:
        exact = sum(stop - start for start, stop in self._exact)
        return self._quantiser.nbytes(count) + self._memory.itemsize * min(count, exact)

    def encode(self, values: Flat, start: int) -> Flat:
        return self._encode(values, start, None)

    def encode_results(self, results: Flat, start: int) -> Flat:
        return self._encode(results, start, results)

    def _encode(self, values: Flat, start: int, results: Flat | None) -> Flat:
        """Return elements as they travel; fill `results`, which may be the elements, with what others make of it."""
        nbytes, places = self._quantiser.nbytes(values.size), self._places(start, values.size)
        out = self._empty(nbytes + self._memory.itemsize * places.size, self.dtype)
        exact = out[nbytes:].view(self._memory)
        if places.size:
            exact[:] = values[places]
            values = values.copy()
            values[places] = 0
        residuals = None
        if self._feedback is not None:
            residuals = self._feedback.residuals(start, values.size, results is not None)
        self._quantiser.quantise(values, out[:nbytes], residuals, results)
        if places.size and results is not None:
            results[places] = exact
        return out

    def decode(self, raw: Flat, out: Flat, start: int) -> Flat:
        nbytes, places = self._quantiser.nbytes(out.size), self._places(start, out.size)
        self._quantiser.restore(raw[:nbytes], out)
        if places.size:
            out[places] = raw[nbytes:].view(self._memory)
        return out

    def _places(self, start: int, count: int) -> Flat:
        """Return which of `count` elements from `start` on are not quantised."""
        first = bisect_right(self._exact, start, key=itemgetter(1))
        last = bisect_left(self._exact, start + count, first, key=itemgetter(0))
        if first == last:
            return _NONE
        stop = start + count
        return np.concatenate([np.arange(max(a, start), min(b, stop)) for a, b in self._exact[first:last]]) - start


_NONE = np.empty(0, np.int64)


@functools.cache
def _quantiser(dtype: str) -> Quantiser:
    return QUANTISERS[dtype]()
