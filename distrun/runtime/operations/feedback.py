"""Error feedback: the residuals that quantisation takes from an operation's elements are added to them the next time.

So an operation that is repeated with gradients loses nothing in the long run: a later step sends what an earlier one
rounded away. (S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi: Error Feedback Fixes SignSGD and other Gradient
Compression Schemes, 2019.) A residual is kept where it arises, on the rank that quantised the elements. Of the rail's
share of an array, a host quantises its own contribution to the parts that other hosts combine, and the result of the
part that it combines itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[Any]

Residuals = Any
"""A flat array of float32, in numpy's memory or a GPU's. It has `size` and slices, which are whatever the quantising
code writes residuals into, and `np.asarray` makes a numpy array of it."""

Spans = list[tuple[int, int]]

_zeros: Callable[[int], Residuals] = partial(np.zeros, dtype=np.float32)


class Feedback:
    """The residuals of one operation on this rank, in two buffers: of the last time, and of this time."""

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
        """The buffer that the operation in progress writes its residuals into."""
        return self._now

    def begin(
        self,
        place: object,
        first: int,
        count: int,
        units: tuple[float, float],
        zeros: Callable[[int], Residuals] = _zeros,
    ) -> None:
        """Begin an operation in which this rank quantises `count` elements, starting with element `first`.

        Residuals of other elements, or from another `place` (the rail of an earlier generation of the job), are
        dropped.

        Args:
            place: the object that assigns elements to ranks.
            first: the first element that this rank quantises.
            count: the number of these elements.
            units: the factors that turn a residual into one of this rank's own elements, as they are given to the
                operation: for a residual of what is sent to be combined, and for a residual of results.
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
        """Return two views for `count` elements of the operation from `start` on: their last residuals, the new ones.

        The caller reads the first and writes the second. `are_results` says that these elements are results, not a
        contribution to what another host combines.
        """
        first = start - self._where[1]
        if are_results:
            self._new_results.append((first, first + count))
        return self._lost[first : first + count], self._now[first : first + count]

    def keep(self) -> None:
        """The results are used: keep the new residuals for the next operation.

        Without this call the next operation adds the residuals of the last one that was kept.
        """
        if self._has_new:
            self._lost, self._now = self._now, self._lost
            self._results = self._new_results
            self._has_new = False

    def discard(self) -> None:
        """The operation has failed, or its results are not used: drop the new residuals."""
        self._has_new = False

    def owed(self, count: int) -> Flat | None:
        """Return the outstanding residuals as elements that this rank would add to its own `count` elements.

        Unlike the residuals themselves, this does not depend on which rank combines which elements, so it can be handed
        over to another operation. None if there is nothing outstanding.
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
