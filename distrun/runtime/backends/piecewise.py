"""Large arrays in ordinary memory, which the ranks of a host show each other piece by piece.

A piece is copied into staging, where it stays in cache until the others have read it. Only what other ranks need is
staged: a rank reads its own elements where they are.

There are two staging buffers, used in turn, one for each exchange. A buffer is written again two exchanges later, when
all ranks have read it, because they have taken part in the exchange between.

Rejected: reading the arrays in place by `process_vm_readv`. For every read the kernel walks the other process's page
tables. With huge pages 100 MB took 21.3 ms instead of 23.1 and 4 MB took 1.10 ms instead of 0.87; small pages cost more
processor time. One exchange fewer, larger or smaller pieces, and pieces in step with each other made no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.shared_memory.segment import STAGE

PIECEWISE = -1
"""Shown in place of an offset: the array is not in the rank's segment, and is shown piece by piece."""


class Pieces:
    """Moves large arrays between the ranks of a host through staging. All of them call the same methods, in order."""

    def __init__(self, local_ranks: LocalRanks) -> None:
        self._local_ranks = local_ranks
        self._segments = local_ranks.segments
        self._own = local_ranks.own
        self._size = local_ranks.size

    def _place(self) -> int:
        """Return the offset of the staging buffer for the next exchange."""
        return self._local_ranks.stage + self._local_ranks.parity * STAGE

    def _view(self, rank: int, offset: int, count: int, dtype: np.dtype[Any]) -> Flat:
        return self._segments[rank].view(offset, count, dtype)

    def allreduce(self, source: Flat, target: Flat, reduction: Reduction, what: str) -> None:
        """Reduce `source` into `target`, which may be the same. Each rank combines its slice of each piece."""
        piece = STAGE // source.itemsize
        for start in range(0, source.size, piece):
            stop = min(source.size, start + piece)
            self._allreduce_piece(source[start:stop], target[start:stop], reduction, what)

    def _allreduce_piece(self, source: Flat, target: Flat, reduction: Reduction, what: str) -> None:
        count, dtype, nbytes = source.size, source.dtype, source.itemsize
        bounds = [count * rank // self._size for rank in range(self._size + 1)]
        first, last = bounds[self._own], bounds[self._own + 1]
        given = self._place()
        staged = self._view(self._own, given, count, dtype)
        staged[:first] = source[:first]
        staged[last:] = source[last:]
        self._local_ranks.exchange((), what)
        reduced = self._place()
        if first < last:
            sources = [self._view(rank, given + first * nbytes, last - first, dtype) for rank in range(self._size)]
            sources[self._own] = source[first:last]
            shown = self._view(self._own, reduced + first * nbytes, last - first, dtype)
            reduction.combine(sources, [target[first:last], shown])
        self._local_ranks.exchange((), what)
        for peer in self._local_ranks.others:
            start, stop = bounds[peer], bounds[peer + 1]
            if start < stop:
                target[start:stop] = self._view(peer, reduced + start * nbytes, stop - start, dtype)

    def reducescatter(
        self, array: Flat, counts: Sequence[int], offsets: Sequence[int], reduction: Reduction, output: Flat, what: str
    ) -> None:
        """Reduce this rank's part of all ranks' arrays into `output`.

        Args:
            array: as long as the sum of `counts`, the number of elements of each rank's part.
            offsets: the offset of each rank's array in its segment, or `PIECEWISE`.
        """
        dtype, nbytes = array.dtype, array.itemsize
        starts = list(accumulate(counts, initial=0))
        piece = STAGE // nbytes // self._size
        for first in range(0, max(counts), piece):
            place = self._place()
            if offsets[self._own] < 0:
                for peer in self._local_ranks.others:
                    part = array[starts[peer] + first : min(starts[peer] + first + piece, starts[peer + 1])]
                    self._view(self._own, place + peer * piece * nbytes, part.size, dtype)[:] = part
            self._local_ranks.exchange((), what)
            count = min(piece, counts[self._own] - first)
            if count > 0:
                start = starts[self._own] + first
                sources = [
                    array[start : start + count]
                    if rank == self._own
                    else self._view(rank, offset + start * nbytes, count, dtype)
                    if offset >= 0
                    else self._view(rank, place + self._own * piece * nbytes, count, dtype)
                    for rank, offset in enumerate(offsets)
                ]
                reduction.combine(sources, [output[first : first + count]])

    def allgather(self, array: Flat, shown: Sequence[Sequence[int]], output: Flat, what: str) -> None:
        """Put the ranks' arrays into `output`, one after the other. `array` may be its own part of `output`.

        `shown` has, for each rank, the offset of its array in its segment, or `PIECEWISE`, and the array's size.
        """
        dtype, piece = array.dtype, STAGE // array.itemsize
        starts = list(accumulate((count for _, count in shown), initial=0))
        for rank, (offset, count) in enumerate(shown):
            if offset >= 0:
                output[starts[rank] : starts[rank] + count] = self._view(rank, offset, count, dtype)
        own = output[starts[self._own] : starts[self._own] + array.size]
        is_in_place = own.ctypes.data == array.ctypes.data
        for first in range(0, max(count for offset, count in shown if offset < 0), piece):
            place = self._place()
            if shown[self._own][0] < 0:
                part = array[first : first + piece]
                self._view(self._own, place, part.size, dtype)[:] = part
                if not is_in_place:
                    own[first : first + piece] = part
            self._local_ranks.exchange((), what)
            for peer in self._local_ranks.others:
                offset, size = shown[peer]
                count = min(piece, size - first)
                if offset < 0 and count > 0:
                    start = starts[peer] + first
                    output[start : start + count] = self._view(peer, place, count, dtype)

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the root's `array` into `array` on every rank."""
        piece = STAGE // array.itemsize
        for first in range(0, array.size, piece):
            part = array[first : first + piece]
            place = self._place()
            if self._own == root:
                self._view(root, place, part.size, array.dtype)[:] = part
            self._local_ranks.exchange((), what)
            if self._own != root:
                part[:] = self._view(root, place, part.size, array.dtype)
