"""Arrays that the ranks of one host show each other, in the memory that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.transport.local_ranks import LocalRanks


class LocalArrays:
    """The arrays that one rank shows its local peers, and theirs. A rank that is alone on its host uses ordinary
    memory."""

    def __init__(self, local_ranks: LocalRanks) -> None:
        self._local_ranks = local_ranks
        self._segments = local_ranks.segments
        self._own_segment = local_ranks.mine
        self.is_alone = local_ranks.size == 1

    def exchange(self, words: Sequence[int], what: str) -> list[Sequence[int]]:
        """Wait for the local peers, and return the words that each of them has given, in order. A barrier of the
        host."""
        return [words] if self.is_alone else self._local_ranks.exchange(words, what)

    def offset_of(self, array: Flat) -> int:
        """Return where an array begins in this rank's segment; negative if it does not lie there."""
        return self._own_segment.offset_of(array)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Flat:
        """Return a new array that the local peers can see."""
        return np.empty(count, dtype) if self.is_alone else self._local_ranks.heap.empty(count, dtype)

    def shown(self, array: Flat) -> Flat:
        """Return the array if the local peers can see it, else a copy that they can."""
        if self.is_alone or self.offset_of(array) >= 0:
            return array
        copy = self.empty(array.size, array.dtype)
        copy[:] = array
        return copy

    def common(self, count: int, dtype: np.dtype[Any], what: str) -> Flat:
        """Return a new array that all ranks of this host use.

        It belongs to the first of them, which must not release it before the others have finished with it.
        """
        if self.is_alone:
            return np.empty(count, dtype)
        array = self.empty(count, dtype) if self._local_ranks.own == 0 else None
        words = self._local_ranks.exchange((-1 if array is None else self.offset_of(array),), what)
        return self._segments[0].view(words[0][0], count, dtype) if array is None else array

    def views(self, own: Flat, offsets: Iterable[int], counts: Iterable[int]) -> list[Flat]:
        """Return the arrays of all local ranks, one of which is `own`: those at `offsets` in their segments."""
        if self.is_alone:
            return [own]
        return [
            segment.view(offset, count, own.dtype)
            for segment, offset, count in zip(self._segments, offsets, counts, strict=True)
        ]
