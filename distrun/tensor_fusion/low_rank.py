"""PowerSGD: the average of matrices as the product of two thin ones, which are all that travels.

Each rank multiplies its matrix M, of n x m elements, with Q, of m x r, which all have from the step before; the ranks
average the products P, and make their columns orthonormal; they average M'P as the next Q; and P Q' is the result. What
it lacks of M is added to the next M (error feedback). (T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD: Practical
Low-Rank Gradient Compression for Distributed Optimization, 2019.)

The arrays are numpy's or torch's: all that is done to them means the same in both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

LEAST_SAVING = 2
"""The least factor by which fewer elements must travel for a tensor to be approximated."""
_NAME = re.compile(r"powersgd\((\d+)\)")
_TINY = 1e-20
"""Keeps a column of zeros, which has no direction, from being divided by zero."""

Array = Any
"""An array of numpy or torch, of float32 or float64."""


def name_of_rank(rank: int) -> str:
    """Return what stands in the place of a type of the wire where matrices are approximated by such of a rank."""
    return f"powersgd({rank})"


def rank_of(name: str) -> int:
    """Return the rank of the approximations that a name of `name_of_rank` asks for; 0 for other texts."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def is_worthwhile(shape: Sequence[int], rank: int) -> bool:
    """Return whether a tensor, as a matrix with the rows of its first dimension, is approximated."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return LEAST_SAVING * rank * (rows + columns) <= rows * columns


class LowRank:
    """The approximation of one matrix, step after step.

    A step is `project`, `look` and `result`, in this order; `keep` when the result is used.
    """

    def __init__(self, shape: Sequence[int], rank: int, random: Callable[[int, int], Array]) -> None:
        """`shape` is the tensor's; `random` returns an array of normal numbers, the same on all ranks."""
        self._rows, self._columns = shape[0], math.prod(shape[1:])
        self._random = partial(random, self._columns, rank)
        self._q = self._random()
        self._lost: Array = None
        self._matrix: Array = None
        self._p: Array = None
        self._new: tuple[Array, Array] | None = None

    def state(self) -> tuple[Array, Array]:
        """Return Q, and what is still to be added to this rank's matrix, in its shape, or None."""
        return self._q, self._lost

    def load(self, q: Array, lost: Array) -> None:
        """Go on from what `state` has returned. A None of either is as it is in the first step."""
        self._q = self._random() if q is None else q
        self._lost = None if lost is None else lost.reshape(self._rows, self._columns)
        self._new = None

    def project(self, tensor: Array) -> Array:
        """Return this rank's P, which is to be averaged; `tensor` is not changed, nor referred to later."""
        self._new = None
        matrix = tensor.reshape(self._rows, self._columns)
        self._matrix = matrix * 1.0 if self._lost is None else matrix + self._lost
        return self._matrix @ self._q

    def look(self, p: Array) -> Array:
        """Take the average of P, and return this rank's next Q, which is to be averaged."""
        self._p = _orthonormal(p)
        return self._matrix.T @ self._p

    def result(self, q: Array, ranks: int) -> Array:
        """Take the average of Q, and return that of the matrices, as a matrix; or take sums, and return theirs.

        Args:
            q: the average, or the sum.
            ranks: the number of ranks if it is a sum; else 1.
        """
        whole = self._p @ q.T
        lost = self._matrix
        lost -= whole / ranks
        # With an infinity or a NaN in any matrix all ranks have them here, and begin again.
        is_finite = math.isfinite(float(q.sum()))
        self._new = (q / ranks, lost) if is_finite else (self._random(), None)
        self._matrix = self._p = None
        return whole

    def keep(self) -> None:
        """The result is used: the next one makes up for what it has lost. Without this call the next step is as if
        there had been none."""
        if self._new is not None:
            self._q, self._lost = self._new
            self._new = None

    def discard(self) -> None:
        """The result is of no use."""
        self._new = None


def _orthonormal(p: Array) -> Array:
    """Make the columns of an array orthonormal, in place, by the modified Gram-Schmidt process; return it."""
    for number in range(p.shape[1]):
        column = p[:, number]
        for other in range(number):
            column -= (p[:, other] @ column) * p[:, other]
        column /= (column @ column) ** 0.5 + _TINY
    return p
