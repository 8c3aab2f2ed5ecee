"""Arrays that the ranks of one host show each other, in the memory that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.transport.local_ranks import LocalRanks


class LocalArrays:
    """The arrays that one rank and its local peers show each other.

    A rank that is alone on its host uses ordinary memory.
    """

    def __init__(self, local_ranks: LocalRanks) -> None:
        self._local_ranks = local_ranks
        self._segments = local_ranks.segments
        self._own_segment = local_ranks.mine
        self.is_alone = local_ranks.size == 1

    def exchange(self, words: Sequence[int], what: str) -> list[Sequence[int]]:
        """Return the `words` of each local rank, by position. This is a barrier of the host's ranks."""
        return [words] if self.is_alone else self._local_ranks.exchange(words, what)

    def offset_of(self, array: Flat) -> int:
        """Return the offset of `array` in this rank's segment, negative if it does not lie there."""
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
        """Return a new array that all ranks of this host share.

        It belongs to the first of them, which must keep it until the others have finished with it.
        """
        if self.is_alone:
            return np.empty(count, dtype)
        array = self.empty(count, dtype) if self._local_ranks.own == 0 else None
        words = self._local_ranks.exchange((-1 if array is None else self.offset_of(array),), what)
        return self._segments[0].view(words[0][0], count, dtype) if array is None else array

    def views(self, own: Flat, offsets: Iterable[int], counts: Iterable[int]) -> list[Flat]:
        """Return the arrays of all local ranks, at `offsets` in their segments. One of them is `own`."""
        if self.is_alone:
            return [own]
        return [
            segment.view(offset, count, own.dtype)
            for segment, offset, count in zip(self._segments, offsets, counts, strict=True)
        ]
