"""PowerSGD: the average of matrices as the product of two thin ones, and only these are sent.

Each rank multiplies its matrix M (n x m) by Q (m x r), which all ranks have from the step before. The ranks average the
products P, and make their columns orthonormal. They average M'P, which becomes the next Q, and P Q' is the result. Its
difference from M is added to the next M (error feedback). (T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD: Practical
Low-Rank Gradient Compression for Distributed Optimization, 2019.)

The arrays are numpy's or torch's: all operations used here mean the same in both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

LEAST_SAVING = 2
"""A tensor is approximated if that divides the number of elements to send by this factor at least."""
_NAME = re.compile(r"powersgd\((\d+)\)")
_TINY = 1e-20
"""Avoids a division by zero for a column of zeros, which has no direction."""

Array = Any
"""A numpy or torch array of float32 or float64."""


def name_of_rank(rank: int) -> str:
    """Return the name that takes the place of a wire dtype where matrices are approximated with this rank."""
    return f"powersgd({rank})"


def rank_of(name: str) -> int:
    """Return the rank in a name made by `name_of_rank`, or 0 for any other text."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def is_worthwhile(shape: Sequence[int], rank: int) -> bool:
    """Return whether a tensor is approximated, as a matrix whose rows are its first dimension."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return LEAST_SAVING * rank * (rows + columns) <= rows * columns


class LowRank:
    """The approximation of one matrix, step after step.

    A step calls `project`, `look` and `result`, in this order, and then `keep` if the result is used.
    """

    def __init__(self, shape: Sequence[int], rank: int, random: Callable[[int, int], Array]) -> None:
        """`shape` is the tensor's. `random` returns an array of normal numbers, the same on all ranks."""
        self._rows, self._columns = shape[0], math.prod(shape[1:])
        self._random = partial(random, self._columns, rank)
        self._q = self._random()
        self._lost: Array = None
        self._matrix: Array = None
        self._p: Array = None
        self._new: tuple[Array, Array] | None = None

    def state(self) -> tuple[Array, Array]:
        """Return Q, and this rank's residual in the shape of its matrix, or None if there is none."""
        return self._q, self._lost

    def load(self, q: Array, lost: Array) -> None:
        """Continue from what `state` has returned. A None for either restores the state before the first step."""
        self._q = self._random() if q is None else q
        self._lost = None if lost is None else lost.reshape(self._rows, self._columns)
        self._new = None

    def project(self, tensor: Array) -> Array:
        """Return this rank's P, which has to be averaged. `tensor` is neither changed nor kept."""
        self._new = None
        matrix = tensor.reshape(self._rows, self._columns)
        self._matrix = matrix * 1.0 if self._lost is None else matrix + self._lost
        return self._matrix @ self._q

    def look(self, p: Array) -> Array:
        """Take the average of P, and return this rank's next Q, which has to be averaged."""
        self._p = _orthonormal(p)
        return self._matrix.T @ self._p

    def result(self, q: Array, ranks: int) -> Array:
        """Take the average of Q, and return the average of the matrices as a matrix. Or take the sum, and return the
        sum.

        Args:
            q: the average, or the sum.
            ranks: the number of ranks if `q` is a sum, otherwise 1.
        """
        whole = self._p @ q.T
        lost = self._matrix
        lost -= whole / ranks
        # An infinity or a NaN in any rank's matrix reaches all ranks here, so all start over together.
        is_finite = math.isfinite(float(q.sum()))
        self._new = (q / ranks, lost) if is_finite else (self._random(), None)
        self._matrix = self._p = None
        return whole

    def keep(self) -> None:
        """The result is used: keep the residual for the next step. Without this call, this step leaves no trace."""
        if self._new is not None:
            self._q, self._lost = self._new
            self._new = None

    def discard(self) -> None:
        """The result is not used: drop the residual."""
        self._new = None


def _orthonormal(p: Array) -> Array:
    """Make the columns of an array orthonormal in place, by the modified Gram-Schmidt process. Returns the array."""
    for number in range(p.shape[1]):
        column = p[:, number]
        for other in range(number):
            column -= (p[:, other] @ column) * p[:, other]
        column /= (column @ column) ** 0.5 + _TINY
    return p
