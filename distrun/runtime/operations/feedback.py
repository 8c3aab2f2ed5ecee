"""Error feedback: what quantisation takes from an operation's elements is added to them the next time.

So an operation that is repeated with gradients loses nothing in the long run: what a step rounds away, a later one
sends. (S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression
Schemes, 2019.) It is kept where it arises, on the rank that quantised the elements: of the rail's share of an array,
a host rounds its own share of the parts that others combine, and the result of the part that it combines itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[Any]

Residuals = Any
"""A flat array of float32, numpy's or one in a GPU's memory: it has `size`, slices of it are whatever those who write
losses want, and `np.asarray` makes a numpy array of it."""

Spans = list[tuple[int, int]]


def _zeros(count: int) -> Residuals:
    return np.zeros(count, np.float32)


class Feedback:
    """The losses of one operation on this rank, in two buffers: those of the last time, and those of now."""

    def __init__(self) -> None:
        self._lost: Residuals = np.empty(0, np.float32)
        self._now: Residuals = np.empty(0, np.float32)
        self._where: tuple[object, int] = (None, 0)
        self._units = 1.0, 1.0
        self._results: Spans = []
        self._new_results: Spans = []
        self._has_new = False

    @property
    def now(self) -> Residuals:
        """Where the operation that has begun writes what its elements lose."""
        return self._now

    def begin(
        self,
        place: object,
        first: int,
        count: int,
        units: tuple[float, float],
        zeros: Callable[[int], Residuals] = _zeros,
    ) -> None:
        """Begin an operation of which this rank quantises `count` elements, from `first` on.

        Whatever was lost at another `place` (the rail of an earlier generation of the job) or of other elements is
        forgotten.

        Args:
            place: the thing that knows which elements are whose.
            first, count: the elements.
            units: by how much a loss has to be multiplied to be one of this rank's own elements, as they are given to
                the operation: a loss of what is sent to be combined, and a loss of results.
            zeros: makes a buffer of zeros.
        """
        if self._where != (place, first) or self._lost.size != count:
            self._where = place, first
            self._lost, self._now = zeros(count), zeros(count)
            self._results = []
        self._units = units
        self._new_results = []
        self._has_new = True

    def residuals(self, start: int, count: int, are_results: bool) -> tuple[Any, Any]:
        """Return what `count` elements from the operation's element `start` on lost the last time, and where to write
        what they lose now."""
        first = start - self._where[1]
        if are_results:
            self._new_results.append((first, first + count))
        return self._lost[first : first + count], self._now[first : first + count]

    def keep(self) -> None:
        """The results are used: what they have lost is to be added to the next ones. Without this call the next
        operation makes up for what was lost before."""
        if self._has_new:
            self._lost, self._now = self._now, self._lost
            self._results = self._new_results
            self._has_new = False

    def discard(self) -> None:
        """The results are of no use, or there are none, since the operation has failed."""
        self._has_new = False

    def owed(self, count: int) -> Flat | None:
        """Return what is still to be made up for, as elements that this rank would add to its own, `count` in all.

        This does not depend on who combines what, as the losses themselves do: it can be given to another operation.
        None if there is nothing.
        """
        lost = np.asarray(self._lost)
        if not lost.any():
            return None
        whole = np.zeros(count, np.float32)
        first = self._where[1]
        part = whole[first : first + lost.size]
        share, result = map(np.float32, self._units)
        np.multiply(lost, share, out=part)
        for start, stop in self._results:
            np.multiply(lost[start:stop], result, out=part[start:stop])
        return whole
