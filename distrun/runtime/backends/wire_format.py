"""The wire format: elements as they travel between hosts, their own, half-precision ones, or quantised blocks."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.quantisation import QUANTISERS, Quantiser
from distrun.runtime.operations.dtypes import ELEMENT_TYPES, ElementType
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.wire import Wire
from distrun.runtime.settings import QUANTISED

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
    another process has its core: the more, the smaller they are there."""

    def __init__(self, empty: Empty = np.empty) -> None:
        """`empty` makes the arrays that are needed until the operation is over."""
        self._empty = empty

    def landing(self, start: int, count: int) -> Flat:
        """Return an array in which `count` elements from `start` on can be received."""
        return self._empty(self.length(start, count), self.dtype)

    @abstractmethod
    def length(self, start: int, count: int) -> int:
        """Return the length of the array that travels for `count` elements from the operation's element `start` on."""

    def most(self, count: int) -> int:
        """Return the largest length of `count` elements."""
        return count

    @abstractmethod
    def encode(self, values: Flat, start: int, are_results: bool = False) -> Flat:
        """Return the elements from the operation's element `start` on as they travel: `values` itself if as they are,
        else a new array. They are those of a rank or a host, or results."""

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

    def encode(self, values: Flat, start: int, are_results: bool = False) -> Flat:
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

    def encode(self, values: Flat, start: int, are_results: bool = False) -> Flat:
        out = self._empty(values.size, self.dtype)
        self._element.narrow(values.astype(self._element.accumulator, copy=False), out)
        return out

    def decode(self, raw: Flat, out: Flat, start: int) -> Flat:
        if out.dtype == self._element.accumulator:
            self._element.widen(raw, out)
        else:
            wide = self._empty(raw.size, self._element.accumulator)
            self._element.widen(raw, wide)
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
        self._exact = np.array(wire.exact, np.int64).reshape(-1, 2)

    def length(self, start: int, count: int) -> int:
        return self._quantiser.nbytes(count) + self._memory.itemsize * self._places(start, count).size

    def most(self, count: int) -> int:
        exact = int((self._exact[:, 1] - self._exact[:, 0]).sum())
        return self._quantiser.nbytes(count) + self._memory.itemsize * min(count, exact)

    def encode(self, values: Flat, start: int, are_results: bool = False) -> Flat:
        nbytes, places = self._quantiser.nbytes(values.size), self._places(start, values.size)
        out = self._empty(nbytes + self._memory.itemsize * places.size, self.dtype)
        if places.size:
            out[nbytes:].view(self._memory)[:] = values[places]
            values = values.copy()
            values[places] = 0
        losses = None if self._feedback is None else self._feedback.losses(start, values.size, are_results)
        self._quantiser.quantise(values, out[:nbytes], losses)
        return out

    def decode(self, raw: Flat, out: Flat, start: int) -> Flat:
        nbytes, places = self._quantiser.nbytes(out.size), self._places(start, out.size)
        self._quantiser.restore(raw[:nbytes], out)
        if places.size:
            out[places] = raw[nbytes:].view(self._memory)
        return out

    def _places(self, start: int, count: int) -> Flat:
        """Return which of `count` elements from `start` on are not quantised."""
        exact = self._exact
        first = np.searchsorted(exact[:, 1], start, side="right")
        last = np.searchsorted(exact[:, 0], start + count)
        parts = np.clip(exact[first:last] - start, 0, count).tolist()
        return np.concatenate([np.arange(*part) for part in parts]) if parts else _NONE


_NONE = np.empty(0, np.int64)


@functools.cache
def _quantiser(dtype: str) -> Quantiser:
    return QUANTISERS[dtype]()
